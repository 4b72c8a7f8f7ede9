"""The largest cosine coefficients of every chunk, as DeMo sends them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, prod, sqrt
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.core.codecs.codec import Codec, Shape, numel, tensors_in
from sgp_runner.core.codecs.packing import as_bytes, from_bytes, pack, packed_bytes, unpack
from sgp_runner.core.flat import joined, to_device
from sgp_runner.core.optim.optimizer import Shapes
from sgp_runner.core.parts import Cut

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class CosineTopK(Codec):
    """The ``k`` largest coefficients of every chunk's orthonormal DCT, with indices; biased.

    The chunks of a matrix are blocks whose sides are the largest divisors of the matrix's sides up
    to ``side``. The chunks of a vector are consecutive entries, and their length is chosen in the
    same way.
    """

    k: int
    side: int
    name: ClassVar[str] = "cosine_top_k"
    cut: ClassVar[Cut | None] = "tensors"

    def chunks(self, shapes: Sequence[Shape]) -> list[Chunks]:
        return [Chunks(shape, self.side) for shape in shapes]

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        values, indices = [], []
        for part, chunk in zip(tensors_in(x, shapes), self.chunks(shapes), strict=True):
            coefficients = chunk.transform(part)
            top = coefficients.abs().topk(min(self.k, chunk.size), 1).indices.sort(1).values
            values.append(coefficients.gather(1, top).float().reshape(-1))
            indices.append(pack(top.reshape(-1), chunk.bits))
        return joined([as_bytes(joined(values)), *indices])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        out, chunks = [], self.chunks(shapes)
        counts = [chunk.count(self.k) for chunk in chunks]
        values, rest = from_bytes(message, sum(counts))
        for chunk, count, part in zip(chunks, counts, values.split_with_sizes(counts), strict=True):
            end = packed_bytes(count, chunk.bits)
            indices = unpack(rest[:end], chunk.bits, count).view(-1, min(self.k, chunk.size)).long()
            rest = rest[end:]
            dense = like.new_zeros(chunk.numel // chunk.size, chunk.size)
            dense.scatter_(1, indices, part.view_as(indices).to(like.dtype))
            out.append(dense.reshape(-1))
        return joined(out)

    def transform_back(self, coefficients: Tensor, shapes: Shapes) -> Tensor:
        if coefficients.is_meta or not shapes:
            return coefficients
        chunks = self.chunks([*shapes.values()])
        parts = coefficients.split_with_sizes([chunk.numel for chunk in chunks])
        return joined(
            [chunk.transform_back(part) for chunk, part in zip(chunks, parts, strict=True)]
        )

    def length(self, shapes: Sequence[Shape]) -> int:
        counts = [(chunk.count(self.k), chunk.bits) for chunk in self.chunks(shapes)]
        return sum(4 * count + packed_bytes(count, bits) for count, bits in counts)


class Chunks:
    """The chunks of one tensor and their cosine transform."""

    def __init__(self, shape: Shape, side: int) -> None:
        self.numel = numel([shape])
        matrix = (shape[0], self.numel // shape[0]) if len(shape) > 1 else (1, self.numel)
        sides = [largest_divisor(size, side) for size in matrix]
        self.split = (matrix[0] // sides[0], sides[0], matrix[1] // sides[1], sides[1])
        self.size = prod(sides)  # coefficients of a chunk
        self.bits = max(1, (self.size - 1).bit_length())

    def count(self, k: int) -> int:
        """Return the number of coefficients to send with ``k`` per chunk."""
        return self.numel // self.size * min(k, self.size)

    def transform(self, x: Tensor) -> Tensor:
        """Return the coefficients [chunks, size] of ``x`` [n]."""
        _, a, _, b = self.split
        blocks = x.view(self.split).movedim(1, 2)  # [rows, columns, a, b]
        left, right = cosines(a, x.dtype, x.device), cosines(b, x.dtype, x.device)
        return (left @ blocks @ right.T).reshape(-1, self.size)

    def transform_back(self, coefficients: Tensor) -> Tensor:
        """Return the tensor [n] of coefficients [n]."""
        rows, a, columns, b = self.split
        blocks = coefficients.view(rows, columns, a, b)
        left, right = (cosines(n, blocks.dtype, blocks.device) for n in (a, b))
        blocks = left.T @ blocks @ right
        return blocks.movedim(2, 1).reshape(-1)


def largest_divisor(number: int, limit: int) -> int:
    return next(divisor for divisor in range(min(number, limit), 0, -1) if number % divisor == 0)


@functools.cache
def cosines(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix [n, n] of the orthonormal DCT-II.

    Zeros of the cosine are exact, because DeMo would take the sign of a rounding error.
    """
    import torch

    def cosine(number: int) -> float:
        return 0.0 if number % (2 * n) == n else cos(pi * number / (2 * n))

    rows = [
        [sqrt((1 if i == 0 else 2) / n) * cosine(i * (2 * j + 1)) for j in range(n)]
        for i in range(n)
    ]
    return to_device(torch.tensor(rows, dtype=dtype), device)
