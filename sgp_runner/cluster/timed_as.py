"""The training that simulated time models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.cluster.machines import Cluster


@dataclass(frozen=True)
class TimedAs:
    """The training that simulated time models. ``None``: the real one.

    model: name in cluster.step_seconds
    num_parameters: 4 bytes each on the wire
    batch_size: samples per node and step
    """

    model: str | None = None
    num_parameters: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for key in ("num_parameters", "batch_size"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"timed_as.{key}", f"{value} must be at least 1.")
            if value is not None and value >= 2**63:
                raise ConfigError(f"timed_as.{key}", f"{value} must be less than 2**63.")

    def step_seconds(self, cluster: Cluster, model: str, batch_size: int) -> float:
        """Mean time of a gradient, by default of ``model`` on ``batch_size`` samples per node."""
        return cluster.mean_step(self.model or model, self.batch_size or batch_size)

    def wire_scale(self, params: Tensor) -> float:
        """Factor of the size of every message, when ``params`` [D] is actually sent."""
        num_bytes = params.numel() * params.element_size()
        return 1.0 if self.num_parameters is None else 4 * self.num_parameters / num_bytes
