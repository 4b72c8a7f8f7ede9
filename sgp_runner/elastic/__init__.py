"""Membership of a run's ranks, and the dry run that verifies their calls before the first step."""
