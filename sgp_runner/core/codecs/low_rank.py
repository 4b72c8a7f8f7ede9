"""A codec that sends matrices as products of thin matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.core.codecs.codec import Codec, Shape, tensors_in
from sgp_runner.core.flat import alike, basis, joined, stacked, to_device
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LowRank(Codec):
    """A matrix as the product of two thin matrices, from one power iteration; biased.

    A message has ``p = orthonormal(m q)`` and ``m^T p`` for each worker's own matrix ``m`` (Vogels
    et al. 2019); the seed of the random ``q`` is known to receivers. Vectors are sent unchanged.

    rank: columns of the thin matrices
    """

    rank: int = 2
    name: ClassVar[str] = "low_rank"
    dtype: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check_least(1, "algo.codec", self, "rank")

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        """Return the lengths of a tensor's two factors, or the tensor's length if it is shorter."""
        rows, columns = shape[0] if shape else 1, prod(shape[1:])
        thin = (rows * self.rank, columns * self.rank)
        return thin if sum(thin) < rows * columns else (rows * columns,)

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        generator, parts = torch.Generator().manual_seed(seed), tensors_in(x, shapes)
        sent = [[part] for part in parts]
        places = [i for i, shape in enumerate(shapes) if len(self.sizes(shape)) > 1]
        matrices = [parts[i].view(shapes[i][0], -1) for i in places]
        starts = [
            torch.randn(matrix.shape[1], self.rank, generator=generator, dtype=x.dtype)
            for matrix in matrices
        ]
        for group in alike(matrices):
            joint, start = (stacked([some[i] for i in group]) for some in (matrices, starts))
            p = basis(joint @ to_device(start, x.device))
            factors = (factor.reshape(len(group), -1) for factor in (p, joint.mT @ p))
            for i, *pair in zip(group, *factors, strict=True):
                sent[places[i]] = pair
        return torch.cat([factor for pair in sent for factor in pair])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        out, sizes = [], [self.sizes(shape) for shape in shapes]
        for size, part in zip(sizes, message.split_with_sizes(list(map(sum, sizes))), strict=True):
            if len(size) == 1:
                out.append(part)
                continue
            p, q = (factor.view(-1, self.rank) for factor in part.split_with_sizes([*size]))
            out.append((p @ q.T).reshape(-1))
        return joined(out)

    def work(self, shapes: Sequence[Shape]) -> int:
        """Return the total size of all factored matrices, times the columns of a factor."""
        return self.rank * sum(prod(shape) for shape in shapes if len(self.sizes(shape)) > 1)

    def length(self, shapes: Sequence[Shape]) -> int:
        return sum(sum(self.sizes(shape)) for shape in shapes)
