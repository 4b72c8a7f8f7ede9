"""Membership of the ranks in a run, and the dry run that verifies their calls before training."""
