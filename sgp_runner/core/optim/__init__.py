"""Local optimizers, a file each, and their learning-rate schedules."""

from sgp_runner.core.optim.adam import Adam, AdamW
from sgp_runner.core.optim.muon import Muon
from sgp_runner.core.optim.optimizer import LocalStep, Optimizer, Shapes, lr_at, no_step
from sgp_runner.core.optim.schedules import (
    Constant,
    Cosine,
    Horizon,
    InverseSqrt,
    Schedule,
    Steps,
    WarmupCosine,
    ends_with_run,
)
from sgp_runner.core.optim.sgd import SGD, local_step

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Horizon",
    "InverseSqrt",
    "LocalStep",
    "Muon",
    "Optimizer",
    "Schedule",
    "Shapes",
    "Steps",
    "WarmupCosine",
    "ends_with_run",
    "local_step",
    "lr_at",
    "no_step",
]
