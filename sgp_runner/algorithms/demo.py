"""DeMo (Peng et al. 2024): the fast components of the momentum are exchanged, the rest stays.

Every step, for each tensor, with C its orthonormal DCT by chunk:

    m <- beta m + lr g;  q = the k largest of |C m| in each chunk;  m <- m - C^T q
    x <- (1 - lr weight_decay) x - lr sign(C^T mean q)

where the mean of a coefficient is over the workers that sent it. The learning rate and the weight
decay are those of the optimizer, SGD without momentum. The chunks of a matrix are blocks whose
sides are the largest divisors of its own sides up to ``side``; those of a vector are runs of such a
length.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi, prod, sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.codecs import (
    Shape,
    as_bytes,
    check_finite,
    from_bytes,
    pack,
    packed_bytes,
    unpack,
)
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sgp_runner.core.optim import Optimizer
    from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class DeMo(Algorithm):
    """Sign steps on the exchanged part of decoupled momenta.

    k: coefficients sent of every chunk
    side: largest side of a chunk
    beta: decay of the momentum that stays
    """

    k: int = 32
    side: int = 64
    beta: float = 0.999
    title: ClassVar[str] = "DeMo"
    sends: ClassVar[Literal["model", "fragments", "chunks"]] = "chunks"
    sgd_defaults: ClassVar[Mapping[str, float]] = {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0}

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "k", "side")
        if not 0 <= self.beta < 1:
            raise ConfigError("algo.beta", f"{self.beta} must be in [0, 1).")

    def check(self, nodes: int, optim: Optimizer) -> None:
        what = f"{self.title} has a momentum of its own, algo.beta"
        if optim.name != "sgd":
            raise ConfigError("optim", f"{what}: use optim=sgd, not {optim.name}.")
        if optim.momentum:
            raise ConfigError("optim.momentum", f"{what}: use optim.momentum=0.")

    async def run(self, worker: Worker) -> None:
        x = worker.params
        m = worker.keep("momentum", lambda: x.new_zeros(x.shape))
        chunks = [Chunks(shape, self.side) for shape in worker.shapes.values()]
        for _ in worker.steps():
            g = await worker.grad()
            x.mul_(1 - worker.lr * worker.optim.weight_decay)
            m.mul_(self.beta).add_(g.mul_(worker.lr))
            check_finite(m, worker.shapes)
            message = encode(m, chunks, self.k)
            m -= transformed_back(decode(message, chunks, self.k, m), chunks)
            total, senders = x.new_zeros(x.shape), x.new_zeros(x.shape)
            for each in await worker.comm.all_gather(message):
                q = decode(each, chunks, self.k, m)
                total += q
                senders += q != 0
            mean = transformed_back(total / senders.clamp(min=1), chunks)
            x.sub_(mean.sign(), alpha=worker.lr)


class Chunks:
    """The chunks of one tensor, and their cosine transform."""

    def __init__(self, shape: Shape, side: int) -> None:
        self.numel = prod(shape)
        matrix = (shape[0], self.numel // shape[0]) if len(shape) > 1 else (1, self.numel)
        sides = [largest_divisor(size, side) for size in matrix]
        self.split = (matrix[0] // sides[0], sides[0], matrix[1] // sides[1], sides[1])
        self.size = prod(sides)  # coefficients of a chunk
        self.bits = max(1, (self.size - 1).bit_length())

    def count(self, k: int) -> int:
        """How many coefficients are sent if ``k`` of a chunk are."""
        return self.numel // self.size * min(k, self.size)

    def transform(self, x: Tensor) -> Tensor:
        """Coefficients [chunks, size] of ``x`` [n]."""
        _, a, _, b = self.split
        blocks = x.view(self.split).movedim(1, 2)  # [rows, columns, a, b]
        return (cosines(a, x.dtype) @ blocks @ cosines(b, x.dtype).T).reshape(-1, self.size)

    def transform_back(self, coefficients: Tensor) -> Tensor:
        """The inverse [n] of `transform`."""
        rows, a, columns, b = self.split
        blocks = coefficients.view(rows, columns, a, b)
        blocks = cosines(a, blocks.dtype).T @ blocks @ cosines(b, blocks.dtype)
        return blocks.movedim(2, 1).reshape(-1)


def largest_divisor(number: int, most: int) -> int:
    return next(each for each in range(min(number, most), 0, -1) if number % each == 0)


@functools.cache
def cosines(n: int, dtype: torch.dtype) -> Tensor:
    """The orthonormal DCT-II as a matrix [n, n]."""
    import torch

    rows = [
        [sqrt((1 if i == 0 else 2) / n) * cos(pi * i * (2 * j + 1) / (2 * n)) for j in range(n)]
        for i in range(n)
    ]
    return torch.tensor(rows, dtype=dtype)


def encode(m: Tensor, chunks: Sequence[Chunks], k: int) -> Tensor:
    """The ``k`` largest coefficients of every chunk, and their places, as bytes.

    A vector without values, of a timing study, has a message without contents, of the same length.
    """
    import torch

    if m.is_meta:
        counts = [(each.count(k), each.bits) for each in chunks]
        length = sum(4 * count + packed_bytes(count, bits) for count, bits in counts)
        return m.new_empty(length, dtype=torch.uint8)
    values, places = [], []
    for part, each in zip(m.split_with_sizes([c.numel for c in chunks]), chunks, strict=True):
        coefficients = each.transform(part)
        top = coefficients.abs().topk(min(k, each.size), 1).indices.sort(1).values
        values.append(coefficients.gather(1, top).float().reshape(-1))
        places.append(pack(top.reshape(-1), each.bits))
    return torch.cat([as_bytes(torch.cat(values)), *places])


def decode(message: Tensor, chunks: Sequence[Chunks], k: int, like: Tensor) -> Tensor:
    """The coefficients [D] of a message, zero where none was sent."""
    import torch

    if like.is_meta:
        return like.new_empty(sum(each.numel for each in chunks))
    counts = [each.count(k) for each in chunks]
    values, rest = from_bytes(message, sum(counts))
    out = []
    for each, count, part in zip(chunks, counts, values.split_with_sizes(counts), strict=True):
        cut = -(-each.bits * count // 8)
        places = unpack(rest[:cut], each.bits, count).view(-1, min(k, each.size))
        rest = rest[cut:]
        dense = like.new_zeros(each.numel // each.size, each.size)
        out.append(dense.scatter_(1, places, part.view_as(places).to(like.dtype)).reshape(-1))
    return torch.cat(out)


def transformed_back(coefficients: Tensor, chunks: Sequence[Chunks]) -> Tensor:
    """The vector [D] of the coefficients [D] of all tensors."""
    import torch

    if coefficients.is_meta:
        return coefficients
    parts = coefficients.split_with_sizes([each.numel for each in chunks])
    return torch.cat([each.transform_back(part) for each, part in zip(chunks, parts, strict=True)])
