"""Muon (Jordan et al. 2024) for matrices, AdamW for the rest: the inner optimizer of MuLoCo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sgp_runner.core.flat import alike, stacked
from sgp_runner.core.optim.adam import moments
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
        import torch

        clipped(g, self.clip, shapes)
        sizes = [prod(shape) for shape in shapes.values()]
        vectors = (g, params, buffers["mean"], buffers["square"])
        parts = zip(*(vector.split_with_sizes(sizes) for vector in vectors), strict=True)
        of_matrices: list[Any] = []
        of_adam: list[Any] = []
        decaying: list[Any] = []
        for (name, shape), (d, x, mean, square) in zip(shapes.items(), parts, strict=True):
            if len(shape) == 2 and not any(word in name for word in NOT_INSIDE):
                of_matrices.append((d, mean, shape))
            else:
                of_adam.append((d, mean, square))
            if len(shape) > 1:
                decaying.append((d, x))
        steps = buffers["steps"].add_(1)
        rates = (lr, of_matrices), (lr * self.adam_lr / self.lr, of_adam)
        if of_matrices:
            ds, means, sides = map(list, zip(*of_matrices, strict=True))
            torch._foreach_lerp_(means, ds, 1 - self.momentum)
            vs = torch._foreach_lerp(ds, means, self.momentum) if self.nesterov else means
            views = [v.view(shape) for v, shape in zip(vs, sides, strict=True)]
            torch._foreach_copy_(ds, all_orthogonalised(views, self.iterations))
            torch._foreach_mul_(ds, [self.factor(*shape) for shape in sides])
        if of_adam:
            ds, means, squares = map(list, zip(*of_adam, strict=True))
            torch._foreach_lerp_(means, ds, 1 - self.beta1)
            torch._foreach_mul_(squares, self.beta2)
            torch._foreach_addcmul_(squares, ds, ds, 1 - self.beta2)
            roots = torch._foreach_div(squares, 1 - self.beta2**steps)
            torch._foreach_sqrt_(roots)
            torch._foreach_add_(roots, self.eps)
            torch._foreach_copy_(ds, torch._foreach_div(means, 1 - self.beta1**steps))
            torch._foreach_div_(ds, roots)
        if decaying:
            torch._foreach_add_(*map(list, zip(*decaying, strict=True)), alpha=self.weight_decay)
        for rate, updates in rates:
            if updates:
                torch._foreach_mul_([d for d, *_ in updates], rate)
        return g

    def factor(self, rows: int, columns: int) -> float:
        if self.adjust == "original":
            return sqrt(max(1, rows / columns))
        return 0.2 * sqrt(max(rows, columns))


def all_orthogonalised(matrices: Sequence[Tensor], iterations: int) -> list[Tensor]:
    """Return each of ``matrices``, `orthogonalised`, as a vector.

    A GPU batches matrices of one shape, in few kernels; their products round differently.
    """
    out: dict[int, Tensor] = {}
    for group in alike(matrices):
        joint = stacked([matrices[i] for i in group])
        rows = orthogonalised(joint, iterations).reshape(len(group), -1)
        out.update(zip(group, rows, strict=True))
    return [out[i] for i in range(len(matrices))]


def orthogonalised(matrix: Tensor, iterations: int) -> Tensor:
    """Return ``matrix`` [A, B] with all singular values moved to about 1, in bfloat16.

    A batch [n, A, B] is orthogonalised matrix by matrix.
    """
    import torch

    add = torch.addmm if matrix.dim() == 2 else torch.baddbmm
    tall = matrix.size(-2) > matrix.size(-1)
    x = matrix.bfloat16()
    x = x.mT if tall else x
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=MIN_NORM)
    for _ in range(iterations):
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x
