"""Adapters of `Averager` for the training loops of other libraries."""
