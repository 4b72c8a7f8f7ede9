"""The interface of local optimizers, which turn a gradient into the step to subtract.

All state of an optimizer is in flat buffers of the same length as the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from sgp_runner.core.optim.schedules import Horizon, Schedule
from sgp_runner.core.parts import norm
from sgp_runner.core.settings import check_range
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    from torch import Tensor


#: The shapes of the parameter tensors that make up the parameters [D], by name, in order.
Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"


class LocalStep:
    """A local step ``d``, computed and taken piece by piece so that memory is traversed once.

    A step can be taken only once and holds no references afterwards.

    take: function to which a call of the step is forwarded
    """

    def __init__(self, take: Callable[[Tensor | None, int], Iterator[slice]]) -> None:
        self.take = take

    def __call__(self, weight: Tensor | None = None, parts: int = 1) -> Iterator[slice]:
        """``z <- (z w - d) / parts`` in place; yield the slice of each piece once it is complete.

        z: the parameters [D]
        weight: w [], 1 if None
        """
        take = self.take
        del self.take
        return take(weight, parts)


def no_step(params: Tensor) -> LocalStep:
    """Return the step of a timing study: ``params`` [D] stay zero but are written once."""

    def take(weight: Tensor | None, parts: int) -> Iterator[slice]:
        params.zero_()
        yield slice(0, params.numel())

    return LocalStep(take)


class Optimizer(Protocol):
    """A local optimizer.

    lr: peak learning rate; scaled by global batch / lr_reference_batch if the latter is set.
    """

    @property
    def name(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def lr_reference_batch(self) -> int | None: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...
    @property
    def slow_buffers(self) -> Literal["reset", "keep"]: ...  # SlowMo's default treatment
    @property
    def schedule(self) -> Schedule: ...
    def buffers(self, params: Tensor) -> dict[str, Tensor]: ...
    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor: ...


def lr_at(optim: Optimizer, epoch: float, horizon: Horizon) -> float:
    """Return the learning rate at ``epoch``."""
    scale = horizon.global_batch / optim.lr_reference_batch if optim.lr_reference_batch else 1.0
    return optim.lr * scale * optim.schedule.factor(epoch, horizon)


def check_rates(optim: Optimizer, *rates: str, decays: Sequence[str]) -> None:
    """Raise ConfigError unless ``rates`` are positive, ``decays`` in [0, 1), others in range."""
    check_range("positive", "optim", optim, *rates)
    check_range("[0, 1)", "optim", optim, *decays)
    check_range("not negative", "optim", optim, "weight_decay")
    check_least(1, "optim", optim, "lr_reference_batch")


def check_clip(group: str, clip: float | None) -> None:
    if clip is not None and not clip > 0:
        raise ConfigError(f"{group}.clip", f"{clip} must be positive, or null for no clipping.")


def clipped(g: Tensor, clip: float | None, shapes: Shapes) -> None:
    """Scale ``g`` in place to the norm ``clip`` if its norm is larger."""
    if clip is not None and not g.is_meta:
        g.mul_((clip / (norm(g, shapes) + 1e-6)).clamp(max=1.0))
