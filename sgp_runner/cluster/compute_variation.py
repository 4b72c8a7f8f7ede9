"""Step-to-step variation of gradient times."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Protocol

from sgp_runner.cluster.checks import check_positive, check_power

if TYPE_CHECKING:
    from numpy.random import Generator


class ComputeTime(Protocol):
    """Variation of a gradient's compute time around its mean, in seconds."""

    def sample(self, mean: float, random: Generator, count: int) -> list[float]: ...


@dataclass(frozen=True)
class ConstantTime:
    """Constant compute times, equal to the mean."""

    def sample(self, mean: float, random: Generator, count: int) -> list[float]:
        return [mean] * count


@dataclass(frozen=True)
class LogNormalTime:
    """Log-normal compute times with the given mean.

    cv: coefficient of variation
    """

    cv: float = 0.05

    def __post_init__(self) -> None:
        check_positive("cluster.compute_time.cv", self.cv)
        check_power("cluster.compute_time.cv", self.cv, 2)

    def sample(self, mean: float, random: Generator, count: int) -> list[float]:
        variance = log(1 + self.cv**2)
        return list(map(float, mean * random.lognormal(-variance / 2, variance**0.5, count)))


@dataclass(frozen=True)
class GammaTime:
    """Gamma-distributed compute times with the given mean (Barkai et al. 2020: shape 100).

    shape: shape parameter; the coefficient of variation is 1 / sqrt(shape)
    """

    shape: float = 100.0

    def __post_init__(self) -> None:
        check_positive("cluster.compute_time.shape", self.shape)
        check_power("cluster.compute_time.shape", self.shape, -1)

    def sample(self, mean: float, random: Generator, count: int) -> list[float]:
        return list(map(float, mean * random.gamma(self.shape, 1 / self.shape, count)))
