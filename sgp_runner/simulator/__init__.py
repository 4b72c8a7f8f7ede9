"""The simulated backend: all workers in one process, on modelled machines."""
