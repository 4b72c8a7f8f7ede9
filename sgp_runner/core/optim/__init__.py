"""Local optimizers, a file each, and their learning-rate schedules."""

from sgp_runner.core.optim.adam import Adam, AdamW
from sgp_runner.core.optim.muon import Muon
from sgp_runner.core.optim.optimizer import Optimizer, Shapes, Updates, lr_at
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
from sgp_runner.core.optim.sgd import SGD, updates

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Horizon",
    "InverseSqrt",
    "Muon",
    "Optimizer",
    "Schedule",
    "Shapes",
    "Steps",
    "Updates",
    "WarmupCosine",
    "ends_with_run",
    "lr_at",
    "updates",
]
