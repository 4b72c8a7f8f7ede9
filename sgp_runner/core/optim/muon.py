"""Muon (Jordan et al. 2024) for matrices, AdamW for the rest: the inner optimizer of MuLoCo."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.core.optim.adam import moments, normalised
from sgp_runner.core.optim.optimizer import Shapes, check_clip, check_rates, clipped
from sgp_runner.core.optim.schedules import Schedule
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import Tensor

# Coefficients of the quintic Newton-Schulz iteration.
A, B, C = 3.4445, -4.7750, 2.0315
MIN_NORM = 1e-7
# Words in the names of matrices that AdamW updates.
NOT_INSIDE = ("embed", "head", "output")


@dataclass(frozen=True)
class Muon:
    """Orthogonalised momentum for matrices; AdamW for vectors, embeddings and heads.

    ``v <- m v + (1 - m) g``; the step is ``lr f O(m v + (1 - m) g)`` with Nesterov momentum, else
    ``lr f O(v)``, as in torch.optim.Muon. O is the Newton-Schulz iteration in bfloat16.

    schedule: how both learning rates change over a run
    lr: peak learning rate of matrices
    adam_lr: peak learning rate of AdamW
    lr_reference_batch: e.g. 256: both rates are meant for that global batch and scale with the real
        one (Goyal et al. 2017); null: no scaling
    momentum: m, in [0, 1)
    nesterov: whether to use Nesterov momentum
    adjust: f for a matrix of A rows and B columns: original is sqrt(max(1, A / B)), match_rms_adamw
        is 0.2 sqrt(max(A, B))
    iterations: number of Newton-Schulz iterations
    beta1: AdamW's decay of the mean of gradients
    beta2: AdamW's decay of the mean of squared gradients
    eps: AdamW's constant, added to the root of the mean square
    weight_decay: decay of matrices, times the learning rate
    clip: largest norm of a gradient; larger gradients are scaled down to it; null: no clipping
    """

    schedule: Schedule
    lr: float = 0.02
    adam_lr: float = 1e-3
    lr_reference_batch: int | None = None
    momentum: float = 0.95
    nesterov: bool = True
    adjust: Literal["original", "match_rms_adamw"] = "original"
    iterations: int = 5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float | None = 1.0
    name: ClassVar[str] = "muon"
    slow_buffers: ClassVar[Literal["reset", "keep"]] = "keep"

    def __post_init__(self) -> None:
        check_rates(self, "lr", "adam_lr", "eps", decays=("beta1", "beta2", "momentum"))
        check_least(1, "optim", self, "iterations")
        check_clip("optim", self.clip)

    def buffers(self, params: Tensor) -> dict[str, Tensor]:
        return moments(params)

    def direction(
        self, g: Tensor, params: Tensor, buffers: dict[str, Tensor], lr: float, shapes: Shapes
    ) -> Tensor:
        """Return the step to subtract [D], in the memory of ``g``."""
        clipped(g, self.clip, shapes)
        before, sizes = buffers["steps"].clone(), [prod(shape) for shape in shapes.values()]
        buffers["steps"] += 1
        vectors = (g, params, buffers["mean"], buffers["square"])
        parts = zip(*(vector.split_with_sizes(sizes) for vector in vectors), strict=True)
        for (name, shape), (d, x, mean, square) in zip(shapes.items(), parts, strict=True):
            if len(shape) == 2 and not any(word in name for word in NOT_INSIDE):
                mean.lerp_(d, 1 - self.momentum)
                v = d.lerp(mean, self.momentum) if self.nesterov else mean
                step = orthogonalised(v.view(shape), self.iterations).reshape(-1)
                d.copy_(step).mul_(self.factor(*shape))
                rate = lr
            else:
                adam_state = {"mean": mean, "square": square, "steps": before.clone()}
                d.copy_(normalised(d, adam_state, self.beta1, self.beta2, self.eps))
                rate = lr * self.adam_lr / self.lr
            if len(shape) > 1:
                d.add_(x, alpha=self.weight_decay)
            d.mul_(rate)
        return g

    def factor(self, rows: int, columns: int) -> float:
        if self.adjust == "original":
            return sqrt(max(1, rows / columns))
        return 0.2 * sqrt(max(rows, columns))


def orthogonalised(matrix: Tensor, iterations: int) -> Tensor:
    """Return ``matrix`` [A, B] with all singular values moved to about 1, in bfloat16."""
    import torch

    tall = matrix.size(0) > matrix.size(1)
    x = matrix.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=MIN_NORM)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.T if tall else x
