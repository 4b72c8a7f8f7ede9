"""Execution of a run from its experiment to its summary, on either backend."""
