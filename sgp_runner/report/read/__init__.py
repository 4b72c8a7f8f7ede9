"""Runs as data: folders, validation, groups of seeds, names, and published figures."""
