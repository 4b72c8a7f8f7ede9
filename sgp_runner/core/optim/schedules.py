"""Learning-rate schedules: factors of the peak learning rate, by epoch.

A schedule depends only on the fractional epoch, so it is the same for synchronous algorithms and
for algorithms that count gradients globally.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Literal, Protocol

from sgp_runner.core.settings import check_range
from sgp_runner.utils.errors import ConfigError


@dataclass(frozen=True)
class Horizon:
    """The constants of a run that a schedule may depend on."""

    epochs: float
    steps_per_epoch: float  # of one node
    nodes: int
    global_batch: int

    @property
    def steps(self) -> int:
        """The number of steps of one node."""
        return max(1, round(self.epochs * self.steps_per_epoch))


class Schedule(Protocol):
    def factor(self, epoch: float, horizon: Horizon) -> float:
        """Return the learning rate at ``epoch`` as a fraction of the peak."""


@dataclass(frozen=True)
class Constant:
    """A constant rate, the peak."""

    def factor(self, epoch: float, horizon: Horizon) -> float:
        return 1.0


@dataclass(frozen=True)
class Steps:
    """Linear warm-up, then a drop at each milestone (Goyal et al. 2017).

    milestones: epochs in a run of reference_epochs; other run lengths scale them in proportion
    reference_epochs: run length that milestones are meant for
    decay: factor at each milestone
    warmup_epochs: epochs of the warm-up, not scaled
    warmup_from: learning rate at the start of the warm-up: reference is the rate of one reference
        batch (Goyal), one_over_n is peak / nodes (Gap-Aware), zero is 0
    reference_batch: batch size for warmup_from=reference
    """

    milestones: tuple[float, ...] = (30, 60, 80)
    reference_epochs: float = 90
    decay: float = 0.1
    warmup_epochs: float = 5
    warmup_from: Literal["reference", "one_over_n", "zero"] = "reference"
    reference_batch: int = 256

    def __post_init__(self) -> None:
        check_range("not negative", "optim.schedule", self, "warmup_epochs")
        if any(milestone < 0 for milestone in self.milestones):
            raise ConfigError(
                "optim.schedule.milestones",
                f"{list(self.milestones)} must be non-negative epochs.",
            )
        positive = ("reference_epochs", "decay", "reference_batch")
        check_range("positive", "optim.schedule", self, *positive)

    def factor(self, epoch: float, horizon: Horizon) -> float:
        scale = horizon.epochs / self.reference_epochs
        passed = sum(epoch >= milestone * scale for milestone in self.milestones)
        return (
            warmed_up(epoch, self.warmup_epochs, self.start(horizon.nodes, horizon.global_batch))
            * self.decay**passed
        )

    def start(self, nodes: int, global_batch: int) -> float:
        """Return the learning rate at which the warm-up begins, as a fraction of the peak."""
        return {
            "reference": min(1.0, self.reference_batch / global_batch),
            "one_over_n": 1 / nodes,
            "zero": 0.0,
        }[self.warmup_from]

    def warning(self, nodes: int, global_batch: int) -> str | None:
        """Return a warning if a non-default warm-up starts at the peak, else None."""
        settings = ("warmup_epochs", "warmup_from", "reference_batch")
        default = all(getattr(self, name) == getattr(Steps, name) for name in settings)
        if default or not self.warmup_epochs or self.start(nodes, global_batch) < 1:
            return None
        reference = f"optim.schedule.reference_batch={self.reference_batch}"
        small = f"a global batch of {global_batch}, not above {reference}"
        why = small if self.warmup_from == "reference" else "one node"
        return f"No warm-up: warmup_from={self.warmup_from} starts at the peak with {why}."


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from the peak to zero at the end, after a linear warm-up from zero.

    warmup_epochs: epochs of the warm-up
    """

    warmup_epochs: float = 4

    def __post_init__(self) -> None:
        check_range("not negative", "optim.schedule", self, "warmup_epochs")

    def factor(self, epoch: float, horizon: Horizon) -> float:
        if epoch < self.warmup_epochs:
            return epoch / self.warmup_epochs
        rest = max(horizon.epochs - self.warmup_epochs, 1e-9)
        return 0.5 * (1 + cos(pi * min(1.0, (epoch - self.warmup_epochs) / rest)))


@dataclass(frozen=True)
class WarmupCosine:
    """Linear from zero to the peak, then half a cosine down to a share of it.

    warmup: share of the run in which the rate rises
    final: the rate at the end, as a share of the peak
    """

    warmup: float = 0.05
    final: float = 0.1

    def __post_init__(self) -> None:
        check_range("[0, 1]", "optim.schedule", self, "warmup", "final")

    def factor(self, epoch: float, horizon: Horizon) -> float:
        # The first step counts as 1: a learning rate of zero would waste it.
        place = (epoch + 1 / horizon.steps_per_epoch) / horizon.epochs
        if place < self.warmup:
            return place / self.warmup
        rest = min(1.0, (place - self.warmup) / max(1 - self.warmup, 1e-9))
        return self.final + (1 - self.final) * 0.5 * (1 + cos(pi * rest))


@dataclass(frozen=True)
class InverseSqrt:
    """Linear from zero, then the peak times ``sqrt(warmup_steps / step)`` (Vaswani et al. 2017).

    warmup_steps: updates of the warm-up; 4000 in the paper, for runs of 100,000
    """

    warmup_steps: int = 60

    def __post_init__(self) -> None:
        check_range("positive", "optim.schedule", self, "warmup_steps")

    def factor(self, epoch: float, horizon: Horizon) -> float:
        step = epoch * horizon.steps_per_epoch + 1
        return (
            step / self.warmup_steps
            if step < self.warmup_steps
            else (self.warmup_steps / step) ** 0.5
        )


def ends_with_run(schedule: Schedule) -> bool:
    """Return whether the learning rate depends on the run's number of epochs from the start.

    Unknown schedules, such as those of plug-ins, count as dependent.
    """
    if isinstance(schedule, Steps):
        return bool(schedule.milestones)
    return not isinstance(schedule, Constant | InverseSqrt)


def warmed_up(epoch: float, epochs: float, start: float) -> float:
    """Return the factor of a linear warm-up from ``start`` to 1 over ``epochs``."""
    return 1.0 if epoch >= epochs else start + (1 - start) * epoch / epochs
