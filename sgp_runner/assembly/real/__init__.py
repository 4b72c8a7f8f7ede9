"""Real runs: launch and backend of their ranks, checkpoints, failures."""
