"""SGD with momentum, with a step that is computed piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.core.flat import Gradient, divide_by, in_pieces, joined, pieces
from sgp_runner.core.fused import has_kernel, sgd_step
from sgp_runner.core.optim.optimizer import LocalStep, Optimizer, Shapes, check_rates
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

    def take(
        self,
        g: Gradient,
        params: Tensor,
        buffers: dict[str, Tensor],
        lr: float,
        weight: Tensor | None,
        parts: int,
    ) -> Iterator[slice]:
        """Take a step from ``params`` [D], like a `LocalStep`; ``g`` is not changed.

        From ``z f``, with ``f = w / parts``, the kernel takes ``d / parts`` at the learning rate
        ``lr / parts`` and the weight decay over ``f``.
        """
        factor = (1.0 if weight is None else float(weight)) / parts
        v, begin = buffers["momentum"] if self.momentum else None, 0
        for part in g if isinstance(g, list) else [g]:
            # Without another operation, one call for each part moves each number once too.
            for piece in pieces(part) if factor != 1 else [slice(0, part.numel())]:
                where = slice(begin + piece.start, begin + piece.stop)
                z, of_piece = params[where], None if v is None else v[where]
                if factor != 1:
                    z.mul_(factor)
                rates = lr / parts, self.weight_decay / factor, self.momentum, self.nesterov
                sgd_step(z, part[piece], of_piece, *rates)
                yield where
            begin += part.numel()


def multiply_and_add(v: Tensor, factor: float, d: Tensor) -> None:
    """Compute ``v <- factor v + d`` in place, with the rounding of two separate operations.

    On a CPU one call suffices: multiplying the rounded product by one is exact, fused or not.
    """
    import torch

    if v.is_cuda:
        v.mul_(factor).add_(d)
    else:
        torch.addcmul(d, v, v.new_ones(()), value=factor, out=v)


def local_step(
    optim: Optimizer,
    g: Gradient,
    params: Tensor,
    buffers: dict[str, Tensor],
    lr: float,
    shapes: Shapes,
) -> LocalStep:
    """Return an optimizer's step from ``params`` [D], to be taken in place."""
    if isinstance(optim, WrappedOptimizer):
        return LocalStep(partial(optim.take, g, params, buffers))
    if type(optim) is SGD and has_kernel(params):  # a subclass may have another direction
        return LocalStep(partial(optim.take, g, params, buffers, lr))

    def subtract(weight: Tensor | None, parts: int) -> Iterator[slice]:
        d = optim.direction(joined(g), params, buffers, lr, shapes)
        return subtracting(((where, d[where]) for where in pieces(d)), params, weight, parts)

    return LocalStep(subtract)


def subtracting(
    d: Iterable[tuple[slice, Tensor]], params: Tensor, weight: Tensor | None, parts: int
) -> Iterator[slice]:
    """Subtract a step ``d``, given in pieces, from ``params`` [D], like a `LocalStep`.

    Division by a power of two commutes with rounding, so ``weight`` includes it.
    """
    scale = 1 / parts if weight is not None and parts.bit_count() == 1 else 1.0
    factor = None if weight is None else weight * scale
    for where, piece in d:
        z = params[where]
        if factor is not None:
            z *= factor
        z.sub_(piece, alpha=scale)
        if scale == 1:
            divide_by(z, parts)
        yield where


def check_no_momentum(optim: Optimizer, title: str) -> None:
    """Raise ConfigError unless ``optim`` is SGD without momentum, as ``title`` has its own."""
    what = f"{title} has its own momentum, algo.beta"
    if optim.name != "sgd":
        raise ConfigError("optim", f"{what}: use optim=sgd, not {optim.name}.")
    if optim.momentum:
        raise ConfigError("optim.momentum", f"{what}: use optim.momentum=0.")
