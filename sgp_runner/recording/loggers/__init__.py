"""Loggers: destinations of a run's metrics besides ``metrics.jsonl``, one file per logger."""
