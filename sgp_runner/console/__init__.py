"""Output of a run on stdout: its progress, its costs, its results."""
