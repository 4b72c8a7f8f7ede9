"""The optimizers Adam and AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.core.optim.optimizer import Optimizer, Shapes, check_clip, check_rates, clipped
from sgp_runner.core.optim.schedules import Schedule
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

FLOOR = 0.1  # of a frozen divisor, relative to its root mean square in a tensor


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015) with bias correction.

    schedule: how the learning rate changes over a run
    lr: peak learning rate
    lr_reference_batch: e.g. 256: lr is meant for that global batch and scales with the real one
        (Goyal et al. 2017); null: no scaling
    beta1: decay of the mean of gradients
    beta2: decay of the mean of squared gradients
    eps: constant added to the root of the mean square, for numerical stability
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
        g = self.prepared(g, params, shapes)
        step = normalised(g, buffers, self.beta1, self.beta2, self.eps)
        return self.decayed(step, params, shapes).mul_(lr)

    def prepared(self, g: Tensor, params: Tensor, shapes: Shapes) -> Tensor:
        """Return the gradient that updates the moments, in the memory of ``g`` [D]."""
        return g.add_(params, alpha=self.weight_decay) if self.weight_decay else g

    def decayed(self, step: Tensor, params: Tensor, shapes: Shapes) -> Tensor:
        """Return ``step`` [D], not yet times the learning rate; Adam has no decoupled decay."""
        return step


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), as in PyTorch.

    weight_decay: decay of matrices, times the learning rate; biases and norms do not decay
    clip: largest norm of a gradient; larger gradients are scaled down to it; null: no clipping
    """

    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float | None = 1.0
    name: ClassVar[str] = "adamw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_clip("optim", self.clip)

    def prepared(self, g: Tensor, params: Tensor, shapes: Shapes) -> Tensor:
        """Clip the gradient that updates the moments, in the memory of ``g`` [D]."""
        clipped(g, self.clip, shapes)
        return g

    def decayed(self, step: Tensor, params: Tensor, shapes: Shapes) -> Tensor:
        """Add the decay of matrices to ``step`` [D], which is not yet times the learning rate."""
        if self.weight_decay:
            sizes = [prod(shape) for shape in shapes.values()]
            steps, xs = step.split_with_sizes(sizes), params.split_with_sizes(sizes)
            both = zip(shapes.values(), steps, xs, strict=True)
            decaying = [(d, x) for shape, d, x in both if len(shape) > 1]
            if step.is_cuda and decaying:
                import torch

                torch._foreach_add_(*zip(*decaying, strict=True), alpha=self.weight_decay)
                return step
            for d, x in decaying:
                d.add_(x, alpha=self.weight_decay)
        return step


def adam_of(optim: Optimizer, title: str) -> Adam:
    """Return ``optim`` if it is Adam or AdamW; raise ConfigError, naming ``title``, for others."""
    if isinstance(optim, Adam):
        return optim
    what = f"{title} computes Adam's steps itself"
    if optim.name in ("adam", "adamw"):
        raise ConfigError("optim", f"{what} and cannot use a PyTorch optimizer: use sgp-run.")
    raise ConfigError("optim", f"{what}: use optim=adam or optim=adamw, not {optim.name}.")


def moments(params: Tensor) -> dict[str, Tensor]:
    """Return Adam's buffers, filled with zeros."""
    zeros = params.new_zeros
    return {"mean": zeros(params.shape), "square": zeros(params.shape), "steps": zeros(())}


def normalised(
    g: Tensor, buffers: dict[str, Tensor], beta1: float, beta2: float, eps: float
) -> Tensor:
    """Update Adam's moments with ``g``; return the mean over the root of the mean square [D]."""
    steps = buffers["steps"].add_(1)
    mean = buffers["mean"].lerp_(g, 1 - beta1)
    square = buffers["square"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = (square / (1 - beta2**steps)).sqrt_().add_(eps)
    return (mean / (1 - beta1**steps)).div_(root)


def frozen_divisor(v: Tensor, eps: float, shapes: Shapes) -> Tensor:
    """Return the divisor [D] of steps for a frozen variance ``v`` [D].

    It is sqrt(v) + eps, and in each tensor at least `FLOOR` times the root of its mean v: a sign
    cannot be 0, so a parameter whose gradient was always 0 would take steps of its scale / eps.
    """
    roots = v.sqrt()
    if roots.is_meta:  # a timing study without values
        return roots
    for part in roots.split_with_sizes([prod(shape) for shape in shapes.values()]):
        part.clamp_(min=FLOOR * part.square().mean().sqrt())
    return roots.add_(eps)
