"""sgp-run: an experiment runner for communication-efficient distributed training."""

__version__ = "0.1.0"
