"""Codecs that send a few bits for every number, and one or more scales for each tensor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.core.codecs.codec import Codec, Shape, numel, tensors_in
from sgp_runner.core.codecs.packing import (
    as_bytes,
    constants,
    from_bytes,
    pack,
    packed_bytes,
    unpack,
)
from sgp_runner.core.flat import joined
from sgp_runner.core.parts import Cut

if TYPE_CHECKING:
    from torch import Tensor

# Of FP4, in units of its scale: the sizes, and what is halfway between neighbours.
SIZES = (0.0, *(2.0**e for e in range(-6, 1)))
BOUNDS = (2.0**-7, *(1.5 * 2.0**e for e in range(-6, 0)))


class Quantised(Codec):
    """First ``scales`` float32 numbers for each tensor, then a code of ``bits`` bits per number."""

    scales: ClassVar[int] = 1
    bits: ClassVar[int]
    cut: ClassVar[Cut | None] = "tensors"

    @abstractmethod
    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scales [scales] and the codes [n] of a tensor ``x`` [n] of float32."""

    @abstractmethod
    def values(self, scales: Tensor, codes: Tensor, like: Tensor) -> Tensor:
        """Return the decoded tensor [n] in the type of ``like``."""

    def groups(self, shapes: Sequence[Shape]) -> Sequence[Shape]:
        """Return the shapes of the parts of a vector that have their own scales."""
        return shapes

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        coded = [self.quantise(part) for part in tensors_in(x.float(), self.groups(shapes))]
        scales = joined([scale for scale, _ in coded])
        return joined([as_bytes(scales), pack(joined([codes for _, codes in coded]), self.bits)])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        groups = self.groups(shapes)
        scales, rest = from_bytes(message, self.scales * len(groups))
        codes = tensors_in(unpack(rest, self.bits, numel(groups)), groups)
        coded = zip(scales.view(-1, self.scales), codes, strict=True)
        return joined([self.values(*part, like) for part in coded])

    def length(self, shapes: Sequence[Shape]) -> int:
        return 4 * self.scales * len(self.groups(shapes)) + packed_bytes(numel(shapes), self.bits)


@dataclass(frozen=True)
class Int8(Quantised):
    """8 bits per number: ``round(127 x / max|x|)``, and one scale per tensor; biased."""

    name: ClassVar[str] = "int8"
    bits: ClassVar[int] = 8

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().max()
        return scale[None], (127 * x / divisor(scale)).round_().char()

    def values(self, scales: Tensor, codes: Tensor, like: Tensor) -> Tensor:
        return codes.char().to(like.dtype) * (scales / 127).to(like)


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
class FP4(Quantised):
    """4 bits per number, E3M0: a sign, and zero or one of seven powers of two; biased.

    Magnitudes are ``s {0, 2^-6, ..., 2^0}`` with ``s = 2^floor(log2 max|x|)`` for each tensor.
    Numbers are rounded to the nearest, ties away from zero; larger numbers are clipped. Streaming
    DiLoCo's paper defines the format but neither scale nor rounding.
    """

    name: ClassVar[str] = "fp4"
    bits: ClassVar[int] = 4

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        top = x.abs().max()
        # frexp: max|x| = m 2^e with m in [0.5, 1)
        power = torch.ldexp(torch.ones_like(top), torch.frexp(top)[1] - 1)
        scale = torch.where(top > 0, power, top)
        size = x.abs() / divisor(scale)
        bounds = constants(BOUNDS, x.dtype, x.device)
        return scale[None], torch.bucketize(size, bounds, right=True) + 8 * (x < 0)

    def values(self, scales: Tensor, codes: Tensor, like: Tensor) -> Tensor:
        sizes = constants(SIZES, like.dtype, like.device)
        return (1 - codes // 8 * 2) * sizes[codes % 8] * scales.to(like)


@dataclass(frozen=True)
class TwoBit(Quantised):
    """2 bits per number, and five numbers per tensor; biased, but preserves the sum.

    With s the mean of a tensor and w = 6/4 of its standard deviation, a number's code is
    ``clip(round((x - s) / w + 2), 0, 3)``; it is decoded as the mean of the numbers of its code
    (Sarfi et al. 2025). The five numbers are s and, for each code, the mean of ``x - s``.
    """

    name: ClassVar[str] = "two_bit"
    scales: ClassVar[int] = 5
    bits: ClassVar[int] = 2

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean()
        deviation = x.std() if len(x) > 1 else x.new_zeros(())
        rest = x - mean
        width = 6 * deviation / 4
        codes = (rest / divisor(width) + 2).round_().clamp_(0, 3).long()
        sums, counts = sums_by_code(rest, codes)
        return joined([mean[None], sums / counts.clamp(min=1)]), codes

    def values(self, scales: Tensor, codes: Tensor, like: Tensor) -> Tensor:
        return (scales[0] + scales[1:][codes]).to(like.dtype)


@dataclass(frozen=True)
class Sign(Quantised):
    """1 bit per number, its sign, and a scale ``s``: ``s`` or ``-s``, and ``s`` for 0; biased.

    scale: s of d numbers x: l1: |x|_1 / d, whose error is the smallest and never larger than x; l2:
        |x|_2 / sqrt(d), with the norm of x, whose error is larger than x if a few numbers are much
        larger than the others
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
        """Return the scale of ``count`` numbers in a tensor ``x``; the others are 0."""
        count = max(count, 1)
        return x.abs().sum() / count if self.scale == "l1" else x.norm() / count**0.5

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.scale_of(x, len(x))[None], x >= 0

    def values(self, scales: Tensor, codes: Tensor, like: Tensor) -> Tensor:
        return signs(codes, like) * scales.to(like)


def signs(codes: Tensor, like: Tensor) -> Tensor:
    """Return 1 or -1 for each of ``codes``, 1 or 0, in the type of ``like``."""
    return codes.to(like.dtype).mul_(2).sub_(1)


def divisor(scale: Tensor) -> Tensor:
    """Return ``scale`` [], or infinity if it is 0, so that the quotients are 0 too."""
    import torch

    return torch.where(scale > 0, scale, inf)


def sums_by_code(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum and the count of the numbers ``x`` [n] of each of four codes.

    On a GPU the sums have a fixed order, and the host does not wait.
    """
    import torch

    if not x.is_cuda:
        return x.new_zeros(4).index_add_(0, codes, x), codes.bincount(minlength=4)
    has_code = codes == torch.arange(4, device=x.device)[:, None]
    return torch.where(has_code, x, 0.0).sum(1), has_code.sum(1)
