"""Simulated runs: their machines, checkpoints and times."""
