"""Simulated times compared with measured and published times, for ``docs/validation.md``."""
