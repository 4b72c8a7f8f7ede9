"""A codec that sends the largest numbers of every chunk of a tensor."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.core.codecs.codec import Codec, Shape, numel
from sgp_runner.core.codecs.packing import as_bytes, from_bytes, pack, packed_bytes, unpack
from sgp_runner.core.codecs.quantised import TwoBit
from sgp_runner.core.flat import joined, to_device
from sgp_runner.core.parts import Cut
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class TopK(Codec):
    """The ``k`` largest numbers of every chunk, with their indices; biased.

    Chunks are blocks of a matrix, ``side`` by ``side``, or ``side ** 2`` consecutive numbers of a
    vector. Chunks at the edges are smaller; a chunk of fewer than ``k`` numbers is sent whole.

    k: numbers to send of each chunk
    side: side of a chunk
    bits: bits per sent number: 32, or 2 with the code of two_bit
    """

    k: int = 64
    side: int = 64
    bits: Literal[2, 32] = 32
    name: ClassVar[str] = "top_k"
    cut: ClassVar[Cut | None] = "tensors"

    def __post_init__(self) -> None:
        check_least(1, "algo.codec", self, "k", "side")
        if self.k > self.side**2:
            raise ConfigError(
                "algo.codec.k", f"{self.k} must be at most {self.side**2}, the size of a chunk."
            )

    @property
    def index_bits(self) -> int:
        return max(1, (self.side**2 - 1).bit_length())

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        values, indices = [], []
        groups = equal_chunks(tuple(shapes), self.side, self.k, x.device)
        for group in groups:
            within = torch.arange(group.size, dtype=group.start.dtype, device=x.device)
            inside = x.index_select(0, group.places(within).view(-1)).view(-1, group.size)
            top = inside.abs().topk(min(self.k, group.size), 1).indices.sort(1).values
            values.append(inside.gather(1, top).view(-1))
            indices.append(top.view(-1))
        slots = joined([group.slots.view(-1) for group in groups])
        largest, within = (
            torch.empty_like(slots, dtype=parts[0].dtype).index_copy_(0, slots, joined(parts))
            for parts in (values, indices)
        )
        largest = largest.float()
        coded = (
            as_bytes(largest)
            if self.bits == 32
            else TwoBit().to_message(largest, self.counts(shapes), seed)
        )
        return joined([coded, pack(within, self.index_bits)])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        counts = self.counts(shapes)
        end = self.values_bytes(counts)
        values = (
            from_bytes(message, numel(counts))[0].to(like.dtype)
            if self.bits == 32
            else TwoBit().from_message(message[:end], counts, like, seed)
        )
        within = unpack(message[end:], self.index_bits, numel(counts))
        groups = equal_chunks(tuple(shapes), self.side, self.k, message.device)
        places = joined([group.places(within[group.slots]).view(-1) for group in groups])
        out = like.new_zeros(numel(shapes))
        out[places.long()] = values[joined([group.slots.view(-1) for group in groups])]
        return out

    def length(self, shapes: Sequence[Shape]) -> int:
        counts = self.counts(shapes)
        return self.values_bytes(counts) + packed_bytes(numel(counts), self.index_bits)

    def values_bytes(self, counts: Sequence[Shape]) -> int:
        return 4 * numel(counts) if self.bits == 32 else TwoBit().length(counts)

    def counts(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return how many numbers of each tensor are sent, as shapes of vectors."""
        return [(kept_of(shape, self.side, self.k),) for shape in shapes]


@dataclass(frozen=True)
class EqualChunks:
    """All chunks of one size in the tensors of a vector, which are encoded together.

    size: numbers in a chunk
    start: [chunks, 1], index of a chunk's first number in the vector
    width, gap: [chunks, 1], count of numbers in a row of a chunk, and between two of its rows
    slots: [chunks, k], indices in the message
    """

    size: int
    start: Tensor
    width: Tensor
    gap: Tensor
    slots: Tensor

    def places(self, within: Tensor) -> Tensor:
        """Return indices in the vector for indices ``within`` each chunk, [m] or [chunks, m]."""
        return self.start + within + within // self.width * self.gap


@functools.cache
def equal_chunks(
    shapes: tuple[Shape, ...], side: int, k: int, device: torch.device
) -> list[EqualChunks]:
    """Return the chunks of a vector's tensors, grouped by size, and cache them on ``device``."""
    import torch

    blocks, end = [], 0
    for shape in shapes:
        blocks += [(size, end + start, *rest) for size, start, *rest in blocks_of(shape, side)]
        end += prod(shape)
    firsts = list(accumulate((min(k, size) for size, *_ in blocks), initial=0))
    groups = []
    for size in sorted({size for size, *_ in blocks}):
        rows = [
            (*rest, first)
            for (n, *rest), first in zip(blocks, firsts[:-1], strict=True)
            if n == size
        ]
        start, width, gap, first = torch.tensor(rows)[:, :, None].unbind(1)
        slots = to_device(first + torch.arange(min(k, size)), device)
        dtype = torch.int32 if end < 2**31 else torch.int64
        start, width, gap = (to_device(t.to(dtype), device) for t in (start, width, gap))
        groups.append(EqualChunks(size, start, width, gap, slots))
    return groups


def blocks_of(shape: Shape, side: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (size, start, width, gap) for the chunks of a tensor, as in `EqualChunks`."""
    rows, columns = (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))
    most_rows, most_columns = (side, side) if len(shape) > 1 else (1, side**2)
    for top in range(0, rows, most_rows):
        for left in range(0, columns, most_columns):
            height, width = min(most_rows, rows - top), min(most_columns, columns - left)
            yield height * width, top * columns + left, width, columns - width


@functools.cache
def kept_of(shape: Shape, side: int, k: int) -> int:
    """Return how many numbers of a tensor are sent."""
    return sum(min(k, size) for size, *_ in blocks_of(shape, side))
