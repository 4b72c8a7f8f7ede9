"""Output of a run on stdout: progress, costs and results."""
