"""The largest numbers of every chunk of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.core.codecs.codec import Codec, Shape, numel
from sgp_runner.core.codecs.packing import as_bytes, from_bytes, pack, packed_bytes, unpack
from sgp_runner.core.codecs.quantised import TwoBit
from sgp_runner.core.flat import joined
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
        values, indices = [], []
        for chunk in chunks_of(shapes, self.side, x.device):
            inside = x[chunk]
            top = inside.abs().topk(min(self.k, len(inside))).indices.sort().values
            values.append(inside[top])
            indices.append(top)
        kept = joined(values).float()
        coded = (
            as_bytes(kept)
            if self.bits == 32
            else TwoBit().to_message(kept, self.kept(shapes), seed)
        )
        return joined([coded, pack(joined(indices), self.index_bits)])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        kept = self.kept(shapes)
        end = self.values_bytes(kept)
        values = (
            from_bytes(message, numel(kept))[0].to(like.dtype)
            if self.bits == 32
            else TwoBit().from_message(message[:end], kept, like, seed)
        )
        chunks = list(chunks_of(shapes, self.side, message.device))
        indices = unpack(message[end:], self.index_bits, numel(kept)).split_with_sizes(
            [min(self.k, len(chunk)) for chunk in chunks]
        )
        out = like.new_zeros(numel(shapes))
        out[joined([chunk[top] for chunk, top in zip(chunks, indices, strict=True)])] = values
        return out

    def length(self, shapes: Sequence[Shape]) -> int:
        kept = self.kept(shapes)
        return self.values_bytes(kept) + packed_bytes(numel(kept), self.index_bits)

    def values_bytes(self, kept: Sequence[Shape]) -> int:
        return 4 * numel(kept) if self.bits == 32 else TwoBit().length(kept)

    def kept(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the count of sent numbers of each tensor, as the shape of a vector."""
        sizes = ([*chunk_sizes(shape, self.side)] for shape in shapes)
        return [(sum(count * min(self.k, size) for size, count in each),) for each in sizes]


def chunks_of(shapes: Sequence[Shape], side: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the indices [m] of each chunk of each tensor, within the vector of all tensors."""
    import torch

    end = 0
    for shape in shapes:
        begin, end = end, end + prod(shape)
        indices = torch.arange(begin, end, device=device)
        if len(shape) < 2:
            yield from torch.split(indices, side**2)
            continue
        for rows in torch.split(indices.view(shape[0], -1), side, 0):
            yield from (block.reshape(-1) for block in torch.split(rows, side, 1))


def chunk_sizes(shape: Shape, side: int) -> Iterator[tuple[int, int]]:
    """Yield (size, number) for the chunks of a tensor."""
    if len(shape) < 2:
        yield from pieces(prod(shape), side**2)
        return
    for height, rows in pieces(shape[0], side):
        for width, columns in pieces(prod(shape[1:]), side):
            yield height * width, rows * columns


def pieces(length: int, largest: int) -> list[tuple[int, int]]:
    """Return (size, number) for the pieces of at most ``largest`` of a length."""
    full, rest = divmod(length, largest)
    return [(largest, full), (rest, 1)] if rest else [(largest, full)]
