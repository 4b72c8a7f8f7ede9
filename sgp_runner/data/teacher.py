"""Non-convex regression on the outputs of a small random network, with a known gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Batch, Dataset, Split, TensorSplit
from sgp_runner.data.tasks import Regression
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.seeding import generator, seeds_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class TeacherData:
    """Targets of a network with ``width`` tanh units, for ``points`` standard normal inputs.

    A training target has normal noise that is redrawn at every read, so a stochastic gradient is
    the true gradient plus zero-mean noise. The validation split has every point once without noise,
    so its gradient is the true gradient.

    dimension: length of an input
    width: hidden units of the network that computes the targets
    points: number of distinct inputs
    samples: samples per epoch over all nodes, a multiple of points; sample i is point i modulo
        points
    noise: standard deviation of a training target's noise; targets without noise have a standard
        deviation of about 1
    problem_seed: seed of the problem, independent of the run's seed
    """

    dimension: int = 8
    width: int = 8
    points: int = 64
    samples: int = 4096
    noise: float = 1.0
    problem_seed: int = 0

    name: ClassVar[str] = "teacher"
    task: ClassVar[str] = "regression"
    stand_in: ClassVar[bool] = True

    @property
    def train_size(self) -> int:
        return self.samples

    def __post_init__(self) -> None:
        check_least(1, "data", self, "dimension", "width", "points")
        if self.samples < 1 or self.samples % self.points:
            raise ConfigError(
                "data.samples",
                f"must be a multiple of data.points={self.points}, not {self.samples}.",
            )
        check_least(0, "data", self, "noise")

    def load(self, dtype: torch.dtype) -> Dataset:
        import torch

        rng = generator(self.problem_seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=rng, dtype=torch.float64)

        inputs = normal(self.points, self.dimension)
        hidden = torch.tanh(inputs @ normal(self.dimension, self.width) * (2 / self.dimension**0.5))
        targets = hidden @ normal(self.width, 1) / self.width**0.5
        point = torch.arange(self.samples) % self.points
        clean = TensorSplit((inputs.to(dtype),), targets.to(dtype), None)
        train = NoisySplit(inputs[point].to(dtype), targets[point].to(dtype), self.noise)
        return Dataset(self.name, Regression(), train, clean, (self.dimension,), 1)


@dataclass(frozen=True)
class NoisySplit(Split):
    """Split whose targets [N, 1] get new normal noise at every read.

    The noise depends only on the seed of the read and on the sample.
    """

    inputs: Tensor
    targets: Tensor
    noise: float

    labels: None = None

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        import torch

        bits = (seeds_of(seed, indices) >> 11) & (2**53 - 1)
        uniform = (bits.double() + 0.5) * 2.0**-53  # in (0, 1)
        noise = self.noise * torch.special.ndtri(uniform).unsqueeze(-1)
        return (self.inputs[indices],), self.targets[indices] + noise.to(self.targets.dtype)
