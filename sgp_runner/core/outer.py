"""The outer optimizer of DiLoCo and its variants: a step along the change of many inner steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import Tensor


def check_outer(algo: object) -> None:
    """Raise ConfigError for invalid settings of an outer optimizer."""
    check_least(1, "algo", algo, "period")
    check_range("positive", "algo", algo, "lr")
    check_range("[0, 1)", "algo", algo, "momentum")


def outer_state(worker: Worker) -> tuple[Tensor, Tensor]:
    """Return the outer parameters [D] and the outer momentum [D] in a worker's state."""
    x = worker.params
    momentum = worker.state("outer_momentum", lambda: x.new_zeros(x.shape))
    return worker.state("outer", x.clone), momentum


def outer_step(
    theta: Tensor, v: Tensor, delta: Tensor, lr: float, momentum: float, nesterov: bool
) -> None:
    """Update ``theta`` and its momentum ``v`` in place with the outer gradient ``delta`` [n]."""
    v.mul_(momentum).add_(delta)
    theta.sub_(delta.add(v, alpha=momentum) if nesterov else v, alpha=lr)
