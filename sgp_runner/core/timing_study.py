"""Timing studies, which simulate a sample of a schedule.

A *sample* of a long schedule is the same schedule with fewer steps per epoch: everything that
depends on epochs (algorithm switches, numbers of peers, warm-up) keeps its share of the run. Every
step of the sample is simulated exactly and represents the same number of real steps, so times are
scaled in proportion. One-time events, such as the exact average at a switch, are scaled too; they
are 0.1 % of the time in a sample of 1,440 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgp_runner.core.optim import Shapes
from sgp_runner.core.problem import Problem
from sgp_runner.data.dataset import Batch, DataConfig, Split
from sgp_runner.models.config import ModelConfig
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.shard import Shard

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Study:
    """The steps of one node in a timing study.

    real: steps of the whole schedule; None if the epoch length of the data set is unknown.
        simulated: steps to simulate, the whole schedule or a sample.
    """

    real: int | None
    simulated: int

    def extended(self, seconds: float) -> dict[str, object]:
        """Scale ``seconds`` of the sample's simulated time to the whole schedule."""
        hours = None if self.real is None else seconds / self.simulated * self.real / 3600
        return {
            "ms_per_iteration": seconds / self.simulated * 1000,
            "hours": hours,
            "iterations": self.real,
        }


def study(data: DataConfig, batch: int, epochs: float, sample_steps: int | None) -> Study:
    """Plan at most ``sample_steps`` (None: all) of a schedule of ``epochs``.

    batch: samples per step, all nodes together.
    """
    samples = data.train_size
    if samples is None:
        if sample_steps is None:
            raise ConfigError(
                "model.sample_steps", f"{data.name} has no known epoch length: set it."
            )
        return Study(None, sample_steps)
    if samples < batch:
        raise ConfigError(
            "batch_size",
            f"{samples} training samples do not fill one batch of {batch}, all nodes together.",
        )
    real = max(1, round(epochs * samples / batch))
    return Study(real, real if sample_steps is None else min(real, sample_steps))


def make_problem(
    model: ModelConfig,
    data: DataConfig,
    study: Study,
    *,
    epochs: float,
    seed: int,
    dtype: torch.dtype,
    shapes: Shapes | None = None,
) -> Problem:
    """Return a problem with the parameters of ``model`` but without data.

    study: determines the length of an epoch.
    shapes: shapes of parameters without values, which replace the parameters of ``model``.
    """
    from sgp_runner.core.flat import FlatModule
    from sgp_runner.core.problem import Problem
    from sgp_runner.core.zeros import zeros
    from sgp_runner.data.dataset import Dataset
    from sgp_runner.data.tasks import Regression
    from sgp_runner.models.vector import Hollow

    unread = Unread(study.simulated / epochs)
    dataset = Dataset(data.name, Regression(), unread, unread, (), 0)
    module = model.build(dataset) if shapes is None else Hollow(shapes)
    flat = FlatModule(module.to(dtype))
    initial = zeros(sum(flat.layers), dtype, "cpu" if shapes is None else "meta")
    return Problem(flat, dataset, unread, seed, trains=False, vectorizes=False, initial=initial)


@dataclass(frozen=True)
class Unread(Split):
    """A data set and sampler with an epoch length but no data; reading raises RuntimeError."""

    steps_per_epoch: float
    labels: None = None

    def __len__(self) -> int:
        return 0

    def indices(self, worker: int, step: int) -> Tensor:
        raise no_data()

    def weight(self, worker: int, step: int, part: Shard) -> float:
        raise no_data()

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        raise no_data()


def no_data() -> RuntimeError:
    return RuntimeError("a timing study reads no data")
