"""The plug-in API: everything that a user's algorithm, model, data set or logger needs.

These names keep their meaning as long as the number `CONTRACT` does not change.
"""

from sgp_runner.algorithms import Algorithm
from sgp_runner.config.logger import Listener, Logger
from sgp_runner.core.comm import Comm
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.data.dataset import DataConfig, Dataset, Pixels, Split, TensorSplit
from sgp_runner.data.tasks import Classification, Regression
from sgp_runner.models.config import ModelConfig
from sgp_runner.topology.graphs import (
    BidirectionalExponential,
    BipartiteExponential,
    Complete,
    DirectedExponential,
    RandomMatching,
    Ring,
    StaticExponential,
    Topology,
    Torus,
)
from sgp_runner.topology.verify import verify
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.seeding import generator

CONTRACT = 1

__all__ = [
    "CONTRACT",
    "Algorithm",
    "BidirectionalExponential",
    "BipartiteExponential",
    "Classification",
    "Comm",
    "Complete",
    "ConfigError",
    "DataConfig",
    "Dataset",
    "DirectedExponential",
    "Listener",
    "Logger",
    "ModelConfig",
    "Optimizer",
    "Pixels",
    "RandomMatching",
    "Regression",
    "Ring",
    "Split",
    "StaticExponential",
    "TensorSplit",
    "Topology",
    "Torus",
    "Worker",
    "generator",
    "verify",
]
