"""Adam and AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.core.optim.optimizer import Shapes, check_clip, check_rates, clipped
from sgp_runner.core.optim.schedules import Schedule

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015) with bias correction.

    schedule: how the learning rate changes over a run
    lr: peak learning rate
    lr_reference_batch: e.g. 256: lr is meant for that global batch and scales with the real one
        (Goyal et al. 2017); null: no scaling
    beta1: decay of the mean of gradients
    beta2: decay of the mean of squared gradients
    eps: constant that is added to the root of the mean square
    weight_decay: its product with the parameters is added to the gradient
    """

    schedule: Schedule
    lr: float = 1e-3
    lr_reference_batch: int | None = None
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.0
    name: ClassVar[str] = "adam"
    momentum: ClassVar[float] = 0.0
    nesterov: ClassVar[bool] = False
    slow_buffers: ClassVar[Literal["reset", "keep"]] = "keep"

    def __post_init__(self) -> None:
        check_rates(self, "lr", "eps", decays=("beta1", "beta2"))

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return moments(params)

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        """Return the step to subtract [D]."""
        if self.weight_decay:
            g.add_(params, alpha=self.weight_decay)
        return normalised(g, buffers, self.beta1, self.beta2, self.eps).mul_(lr)


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), as in PyTorch.

    schedule: how the learning rate changes over a run
    lr: peak learning rate
    lr_reference_batch: e.g. 256: lr is meant for that global batch and scales with the real one
        (Goyal et al. 2017); null: no scaling
    beta1: decay of the mean of gradients
    beta2: decay of the mean of squared gradients
    eps: constant that is added to the root of the mean square
    weight_decay: decay of matrices, times the learning rate; biases and norms do not decay
    clip: largest norm of a gradient; larger gradients are scaled down to it; null: no clipping
    """

    schedule: Schedule
    lr: float = 1e-3
    lr_reference_batch: int | None = None
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float | None = 1.0
    name: ClassVar[str] = "adamw"
    momentum: ClassVar[float] = 0.0
    nesterov: ClassVar[bool] = False
    slow_buffers: ClassVar[Literal["reset", "keep"]] = "keep"

    def __post_init__(self) -> None:
        check_rates(self, "lr", "eps", decays=("beta1", "beta2"))
        check_clip("optim", self.clip)

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return moments(params)

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        """Return the step to subtract [D]."""
        clipped(g, self.clip, shapes)
        step = normalised(g, buffers, self.beta1, self.beta2, self.eps)
        if self.weight_decay:
            sizes = [prod(shape) for shape in shapes.values()]
            steps, xs = step.split_with_sizes(sizes), params.split_with_sizes(sizes)
            for shape, d, x in zip(shapes.values(), steps, xs, strict=True):
                if len(shape) > 1:
                    d.add_(x, alpha=self.weight_decay)
        return step.mul_(lr)


def moments(params: Tensor) -> dict[str, Tensor]:
    """Return Adam's buffers."""
    zeros = params.new_zeros
    return {"mean": zeros(params.shape), "square": zeros(params.shape), "steps": zeros(())}


def normalised(
    g: Tensor, buffers: dict[str, Tensor], beta1: float, beta2: float, eps: float
) -> Tensor:
    """Update Adam's moments with ``g``; return the mean / the root of the mean square [D]."""
    steps = buffers["steps"].add_(1)
    mean = buffers["mean"].lerp_(g, 1 - beta1)
    square = buffers["square"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = (square / (1 - beta2**steps)).sqrt_().add_(eps)
    return (mean / (1 - beta1**steps)).div_(root)
