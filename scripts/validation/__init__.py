"""Simulated times beside measured and published ones, for ``docs/validation.md``."""
