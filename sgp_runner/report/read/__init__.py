"""Runs as data: their folders, validation, groups of seeds, names, and published figures."""
