"""From an experiment to its summary, on either backend."""
