"""Codecs that send a few bits per number and one or more scales per tensor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sgp_runner.core.codecs.codec import Codec, Shape, numel, tensors_in
from sgp_runner.core.codecs.packing import (
    as_bytes,
    constants,
    from_bytes,
    pack,
    packed_bytes,
    unpack,
)
from sgp_runner.core.flat import PIECE, joined
from sgp_runner.core.parts import Cut

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GPU_PIECE = 2**21  # numbers; a GPU codes less than two pieces at a time
# Of FP4, in units of its scale: the decoded codes, and what is halfway between neighbours.
SIZES = (0.0, *(2.0**e for e in range(-6, 1)))
SIGNED_SIZES = (*SIZES, *(-size for size in SIZES))
BOUNDS = (2.0**-7, *(1.5 * 2.0**e for e in range(-6, 0)))


class Quantised(Codec):
    """A codec that sends ``scales`` float32 numbers per tensor, then ``bits`` bits per number.

    On a GPU all tensors are coded together, so that the number of kernels does not depend on the
    number of tensors. Reductions add up in a different order there.
    """

    scales: ClassVar[int] = 1
    bits: ClassVar[int]
    cut: ClassVar[Cut | None] = "tensors"

    @abstractmethod
    def coded(self, x: Tensor, groups: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        """Return the scales [groups, scales] and the codes, uint8 [n], of ``x`` [n] of float32."""

    @abstractmethod
    def values(self, table: Tensor, which: Any, codes: Tensor, like: Tensor) -> Tensor:
        """Return the decoded numbers [n] in the type of ``like``.

        table: the vector that `table` returned
        which: the group of each number, or one group for all numbers
        """

    def table(self, scales: Tensor) -> Tensor:
        """Return the vector that decoding needs, computed from ``scales`` [groups, scales]."""
        return scales.view(-1)

    def groups(self, shapes: Sequence[Shape]) -> Sequence[Shape]:
        """Return the shapes of the groups of a vector, each of which has its own scales."""
        return shapes

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        scales, codes = self.coded(x.float(), self.groups(shapes))
        return joined([as_bytes(scales), pack(codes, self.bits)])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        groups = self.groups(shapes)
        scales, rest = from_bytes(message, self.scales * len(groups))
        codes = unpack(rest, self.bits, numel(groups))
        out = like.new_empty(len(codes))
        table = self.table(scales.view(-1, self.scales)).to(like)
        for which, part, values in pieces_of(groups, codes, out):
            values.copy_(self.values(table, which, part, like))
        return out

    def length(self, shapes: Sequence[Shape]) -> int:
        return 4 * self.scales * len(self.groups(shapes)) + packed_bytes(numel(shapes), self.bits)


class Scaled(Quantised):
    """A codec that divides by one scale per group, which is computed from max|x|."""

    @abstractmethod
    def scales_of(self, tops: Tensor) -> Tensor:
        """Return the scales [groups] for ``tops`` [groups], the max|x| of each group."""

    @abstractmethod
    def codes(self, x: Tensor, unit: Tensor) -> Tensor:
        """Return the codes [n] of ``x`` [n] / ``unit``, which is [n] or a single number."""

    def coded(self, x: Tensor, groups: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        import torch

        parts = [*tensors_in(x, groups)]
        tops = torch._foreach_norm(parts, inf) if x.is_cuda else [p.abs().max() for p in parts]
        scales = self.scales_of(torch.stack(tops))
        units, codes = divisor(scales), x.new_empty(len(x), dtype=torch.uint8)
        for which, part, out in pieces_of(groups, x, codes):
            out.copy_(self.codes(part, units[which]))
        return scales, codes


@dataclass(frozen=True)
class Int8(Scaled):
    """8 bits per number, ``round(127 x / max|x|)``, and one scale per tensor; biased."""

    name: ClassVar[str] = "int8"
    bits: ClassVar[int] = 8

    def scales_of(self, tops: Tensor) -> Tensor:
        return tops

    def codes(self, x: Tensor, unit: Tensor) -> Tensor:
        return (127 * x).div_(unit).round_().char()

    def table(self, scales: Tensor) -> Tensor:
        return scales.view(-1) / 127

    def values(self, table: Tensor, which: Any, codes: Tensor, like: Tensor) -> Tensor:
        return codes.char().to(like.dtype).mul_(table[which])


@dataclass(frozen=True)
class Quantize8(Codec):
    """One vector as int8 [n + 4]: ``round(127 (x / max|x|))``, then the float32 scale.

    The order of operations is from Li et al. 2018; results differ from `Int8` in the last bit.
    """

    name: ClassVar[str] = "quantize8"
    dtype: ClassVar[str | None] = "int8"

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        scale = x.abs().max().float() if x.numel() else x.new_zeros((), dtype=torch.float32)
        levels = torch.where(scale > 0, x.float() / scale * 127, 0.0).round_().char()
        return joined([levels, scale.view(1).view(torch.int8)])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        import torch

        scale = message[-4:].clone().view(torch.float32)
        return message[:-4].to(like.dtype) * (scale / 127).to(like.dtype)


@dataclass(frozen=True)
class FP4(Scaled):
    """4 bits per number, E3M0: a sign and either zero or one of seven powers of two; biased.

    Magnitudes are ``s {0, 2^-6, ..., 2^0}`` with ``s = 2^floor(log2 max|x|)`` for each tensor.
    Numbers are rounded to the nearest, ties away from zero; larger numbers are clipped. Streaming
    DiLoCo's paper defines the format but neither scale nor rounding.
    """

    name: ClassVar[str] = "fp4"
    bits: ClassVar[int] = 4

    def scales_of(self, tops: Tensor) -> Tensor:
        import torch

        # frexp: max|x| = m 2^e with m in [0.5, 1)
        power = torch.ldexp(torch.ones_like(tops), torch.frexp(tops)[1] - 1)
        return torch.where(tops > 0, power, tops)

    def codes(self, x: Tensor, unit: Tensor) -> Tensor:
        import torch

        bounds = constants(BOUNDS, x.dtype, x.device)
        codes = torch.bucketize(x.abs().div_(unit), bounds, right=True, out_int32=True).byte()
        return codes.add_(x < 0, alpha=8)

    def values(self, table: Tensor, which: Any, codes: Tensor, like: Tensor) -> Tensor:
        sizes = constants(SIGNED_SIZES, like.dtype, like.device)
        return sizes.index_select(0, codes.int()).mul_(table[which])


@dataclass(frozen=True)
class TwoBit(Quantised):
    """2 bits per number and five float32 numbers per tensor; biased, but preserves the sum.

    With s the mean of a tensor and w = 6/4 of its standard deviation, the code of a number x is
    ``clip(round((x - s) / w + 2), 0, 3)``; it is decoded as the mean of all numbers with that code
    (Sarfi et al. 2025). The five numbers are s and, for each code, the mean of ``x - s``.
    """

    name: ClassVar[str] = "two_bit"
    scales: ClassVar[int] = 5
    bits: ClassVar[int] = 2

    def coded(self, x: Tensor, groups: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        import torch

        parts, counts = tensors_in(x, groups), tuple(numel([group]) for group in groups)
        rest, codes = torch.empty_like(x), x.new_empty(len(x), dtype=torch.uint8)
        if x.is_cuda:
            total, n = totals(counts, x.device), constants(counts, x.dtype, x.device)
            means = total(x) / n
        else:
            means = torch.stack([part.mean() for part in parts])
            deviations = [part.std() if len(part) > 1 else part.new_zeros(()) for part in parts]
        for which, part, out in pieces_of(groups, x, rest):
            torch.sub(part, means[which], out=out)
        width = (
            torch.stack(deviations)
            if not x.is_cuda
            else (total(rest.square()) / (n - 1).clamp_(min=1)).sqrt_()
        )
        units = divisor(6 * width / 4)
        sums, number = (
            x.new_zeros(len(groups), 4),
            codes.new_zeros(len(groups), 4, dtype=torch.int64),
        )
        for which, part, out in pieces_of(groups, rest, codes):
            out.copy_((part / units[which]).add_(2).round_().clamp_(0, 3))
            if not x.is_cuda:
                sums[which].index_add_(0, out.int(), part)
                number[which] += out.bincount(minlength=4)
        if x.is_cuda:
            for code in range(4):
                sums[:, code] = total(torch.where(codes == code, rest, 0.0))
                number[:, code] = total((codes == code).float())
        return torch.cat([means[:, None], sums / number.clamp_(min=1)], 1), codes

    def table(self, scales: Tensor) -> Tensor:
        return (scales[:, :1] + scales[:, 1:]).view(-1)

    def values(self, table: Tensor, which: Any, codes: Tensor, like: Tensor) -> Tensor:
        return table.index_select(0, codes.int().add_(4 * which))


@dataclass(frozen=True)
class Sign(Quantised):
    """1 bit per number, its sign, and a scale ``s``; decoded as ``s`` or ``-s`` (0: ``s``); biased.

    scale: s of d numbers x: l1: |x|_1 / d, with the smallest error, whose norm never exceeds that
        of x; l2: |x|_2 / sqrt(d), which has the norm of x; the error has a larger norm than x if a
        few numbers are much larger than the others
    per: extent of a scale: tensor, or vector (all tensors)
    """

    scale: Literal["l1", "l2"] = "l1"
    per: Literal["tensor", "vector"] = "tensor"
    name: ClassVar[str] = "sign"
    bits: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.per == "vector":
            object.__setattr__(self, "cut", None)

    def groups(self, shapes: Sequence[Shape]) -> Sequence[Shape]:
        return shapes if self.per == "tensor" or not shapes else [(numel(shapes),)]

    def scale_of(self, x: Tensor, count: int) -> Tensor:
        """Return the scale of a tensor ``x`` of which all but ``count`` numbers are 0."""
        count = max(count, 1)
        return x.abs().sum() / count if self.scale == "l1" else x.norm() / count**0.5

    def coded(self, x: Tensor, groups: Sequence[Shape]) -> tuple[Tensor, Tensor]:
        import torch

        parts, codes = tensors_in(x, groups), (x >= 0).byte()
        if not x.is_cuda:
            return torch.stack([self.scale_of(part, len(part)) for part in parts]), codes
        power = 1 if self.scale == "l1" else 2
        counts = tuple(numel([group]) ** (1 / power) for group in groups)
        norms = torch.stack(torch._foreach_norm([*parts], power))
        return norms / constants(counts, x.dtype, x.device), codes

    def values(self, table: Tensor, which: Any, codes: Tensor, like: Tensor) -> Tensor:
        return signs(codes, like).mul_(table[which])


def signs(codes: Tensor, like: Tensor) -> Tensor:
    """Return 1 for each code 1 and -1 for each code 0, in the type of ``like``."""
    return codes.to(like.dtype).mul_(2).sub_(1)


def divisor(scales: Tensor) -> Tensor:
    """Return ``scales`` with infinity instead of 0, so that quotients by it are 0."""
    import torch

    return torch.where(scales > 0, scales, inf)


def pieces_of(groups: Sequence[Shape], *vectors: Tensor) -> Iterator[tuple[Any, ...]]:
    """Cut ``vectors`` [n] at the same places; yield the group of each entry and the pieces.

    On a CPU a piece lies in one group, so a single group number is yielded, and fits in the cache.
    """
    import torch

    size = GPU_PIECE if vectors[0].is_cuda else PIECE
    pairs = [(i, length) for i, group in enumerate(groups) for length in cuts(numel([group]), size)]
    numbers: Iterable[Any] = (i for i, _ in pairs)
    lengths = [length for _, length in pairs]
    if vectors[0].is_cuda:
        of = constants(tuple(range(len(groups))), torch.int32, vectors[0].device).unbind()
        ends = zip(pairs, accumulate(lengths), strict=True)
        runs = [[pair for pair, _ in run] for _, run in groupby(ends, lambda pair: pair[1] // size)]
        numbers = (torch.cat([of[i].expand(length) for i, length in run]) for run in runs)
        lengths = [sum(length for _, length in run) for run in runs]
    yield from zip(numbers, *(v.split_with_sizes(lengths) for v in vectors), strict=True)


def cuts(count: int, size: int) -> list[int]:
    """Return the lengths of the pieces of at most ``size`` that ``count`` numbers are cut into."""
    return [min(size, count - begin) for begin in range(0, count, size)]


def totals(counts: tuple[int, ...], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a function that sums each of several consecutive segments of a vector on a GPU.

    It sums pieces of segments first: one block of threads sums one piece, in a fixed order.
    """
    import torch

    lengths = [cuts(count, PIECE) for count in counts]
    inner = constants(tuple(chain.from_iterable(lengths)), torch.int64, device)
    outer = constants(tuple(map(len, lengths)), torch.int64, device)

    def total(x: Tensor) -> Tensor:
        for lengths in (inner, outer):
            x = torch.segment_reduce(x, "sum", lengths=lengths, unsafe=True)
        return x

    return total
