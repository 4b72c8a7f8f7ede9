"""Adapters by which an `Averager` steps in the training loops of other libraries."""
