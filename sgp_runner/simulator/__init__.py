"""The backend in simulated time: all workers in one process, on modelled machines."""
