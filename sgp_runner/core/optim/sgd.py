"""SGD with momentum, whose step is computed piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.core.flat import Gradient, in_pieces, joined, pieces
from sgp_runner.core.optim.optimizer import Optimizer, Shapes, Updates, check_rates
from sgp_runner.core.optim.schedules import Schedule
from sgp_runner.core.optim.wrapped import WrappedOptimizer
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SGD:
    """SGD with (Nesterov) momentum and weight decay, as in PyTorch.

    ``v <- m v + g``; the step is ``lr (g + m v)`` with Nesterov momentum, else ``lr v``.

    schedule: how the learning rate changes over a run
    lr: peak learning rate
    lr_reference_batch: e.g. 256: lr is meant for that global batch and scales with the real one
        (Goyal et al. 2017); null: no scaling
    momentum: m, in [0, 1)
    nesterov: whether to use Nesterov momentum
    weight_decay: its product with the parameters is added to the gradient
    """

    schedule: Schedule
    lr: float = 0.1
    lr_reference_batch: int | None = None
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4
    name: ClassVar[str] = "sgd"
    slow_buffers: ClassVar[Literal["reset", "keep"]] = "reset"

    def __post_init__(self) -> None:
        check_rates(self, "lr", decays=["momentum"])

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return {"momentum": params.new_zeros(params.shape)} if self.momentum else {}

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        """Return the step to subtract [D], in the memory of ``g``."""
        for d, x, v in in_pieces(g, params, buffers["momentum"] if self.momentum else g):
            if self.weight_decay:
                d.add_(x, alpha=self.weight_decay)
            if self.momentum:
                multiply_and_add(v, self.momentum, d)
                d.add_(v, alpha=self.momentum) if self.nesterov else d.copy_(v)
            d.mul_(lr)
        return g


def multiply_and_add(v: Tensor, factor: float, d: Tensor) -> None:
    """Compute ``v <- factor v + d`` in place, with the rounding of two separate operations.

    On a CPU one call is enough: multiplying the rounded product by one is exact, fused or not.
    """
    import torch

    if v.is_cuda:
        v.mul_(factor).add_(d)
    else:
        torch.addcmul(d, v, v.new_ones(()), value=factor, out=v)


def updates(
    optim: Optimizer,
    g: Gradient,
    params: Tensor,
    buffers: dict[str, Tensor],
    lr: float,
    shapes: Shapes,
) -> Updates:
    """Yield the step of `Optimizer.direction` in pieces (slice, values).

    Only SGD yields more than one piece: its step for a parameter depends on no other parameter.
    """
    if isinstance(optim, WrappedOptimizer):
        yield slice(0, params.numel()), optim.step(g, params, buffers)
        return
    if not isinstance(optim, SGD):
        whole = joined(g)
        yield slice(0, whole.numel()), optim.direction(whole, params, buffers, lr, shapes)
        return
    begin = 0
    for part in g if isinstance(g, list) else [g]:
        for piece in pieces(part):
            where = slice(begin + piece.start, begin + piece.stop)
            state = {name: buffer[where] for name, buffer in buffers.items()}
            yield where, optim.direction(part[piece], params[where], state, lr, shapes)
        begin += part.numel()


def check_no_momentum(optim: Optimizer, title: str) -> None:
    """Raise ConfigError unless ``optim`` is SGD without momentum; ``title`` has algo.beta."""
    what = f"{title} has a momentum of its own, algo.beta"
    if optim.name != "sgd":
        raise ConfigError("optim", f"{what}: use optim=sgd, not {optim.name}.")
    if optim.momentum:
        raise ConfigError("optim.momentum", f"{what}: use optim.momentum=0.")
