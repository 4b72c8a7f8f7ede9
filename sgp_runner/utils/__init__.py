"""Errors, units, seeds, secrets, locks, files, launchers and provenance, for all packages."""
