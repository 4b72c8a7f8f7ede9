"""Codecs: lossy encodings of vectors, whose messages have as many bits as they count for.

A vector [n] is made of tensors of known shapes; scales and chunks are per tensor. A message is a
contiguous tensor, of bytes unless a torch type says it all. `Identity` and `RandomK` are unbiased;
the others are biased, and an algorithm that uses them either sends what was lost later (error
feedback) or says that it does not. Most codes have no place for numbers that are not finite, so
training that has come to these has diverged (`check_finite`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from sgp_runner.utils.errors import ConfigError, NotFinite, check_least

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.optim import Shapes

MOST = 1e18  # larger numbers have squares beyond float32, in which they are coded
Shape: TypeAlias = tuple[int, ...]


class Codec:
    """A frozen dataclass that encodes and decodes, as its subclass says.

    A vector without values, of a timing study, has a message without contents, of the same length.
    """

    def encode(self, x: Tensor, shapes: Shapes, seed: int) -> Tensor:
        """The message of ``x`` [n]; a random codec draws from ``seed``, which receivers know.

        Raises NotFinite.
        """
        each = [*shapes.values()]
        if x.is_meta:
            return self.blank(each, x)
        check_finite(x, shapes)
        return self.to_message(x, each, seed)

    def decode(self, message: Tensor, shapes: Shapes, like: Tensor, seed: int) -> Tensor:
        """The vector [n] in the type of ``like``, any tensor."""
        each = [*shapes.values()]
        if like.is_meta:
            return like.new_empty(numel(each))
        return self.from_message(message, each, like, seed)

    @property
    def contraction(self) -> Codec:
        """This codec for algorithms that send later what it loses: E|Q(x) - x|^2 < |x|^2."""
        return self

    @abstractmethod
    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor: ...

    @abstractmethod
    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor: ...

    @abstractmethod
    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        """A message of a vector in the type of ``like``, of the right length; without contents."""


def check_finite(x: Tensor, shapes: Shapes, begin: int = 0) -> None:
    """Raise NotFinite, which names the tensor, if a number of ``x`` [n] is not finite or too large.

    Waits for the device.

    x: the entries from ``begin`` of a vector that is made of tensors of these shapes
    """
    if x.is_meta or not x.numel() or float(x.abs().max()) <= MOST:
        return
    first = int((~(x.abs() <= MOST)).nonzero()[0])
    ends = zip(shapes, accumulate(map(prod, shapes.values())), strict=True)
    name = next(name for name, end in ends if begin + first < end)
    raise NotFinite(f"its message has {float(x[first]):g} in the tensor {name}")


def tensors_in(x: Tensor, shapes: Sequence[Shape]) -> Sequence[Tensor]:
    """The tensors that make up ``x``, each as a vector."""
    return x.split_with_sizes([prod(shape) for shape in shapes])


def numel(shapes: Sequence[Shape]) -> int:
    """The length of a vector that is made of tensors of these shapes."""
    return sum(map(prod, shapes))


def packed_bytes(count: int, bits: int) -> int:
    """The bytes of ``count`` packed numbers."""
    return -(-count * bits // 8)


def pack(values: Tensor, bits: int) -> Tensor:
    """uint8 [ceil(n bits / 8)]: whole numbers [n] of ``bits`` bits each, without gaps."""
    import torch

    places = torch.arange(bits, device=values.device)
    flat = ((values.long()[:, None] >> places) & 1).reshape(-1)
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    return (flat << torch.arange(8, device=values.device)).sum(1).to(torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """int64 [count]: the numbers that `pack` has packed."""
    import torch

    flat = (packed.long()[:, None] >> torch.arange(8, device=packed.device)) & 1
    flat = flat.reshape(-1)[: bits * count].view(count, bits)
    return (flat << torch.arange(bits, device=packed.device)).sum(1)


def as_bytes(x: Tensor) -> Tensor:
    """uint8: the bytes of a contiguous tensor."""
    import torch

    return x.contiguous().view(-1).view(torch.uint8)


def from_bytes(message: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """``count`` float32 at the beginning of a message, and the rest of it."""
    import torch

    return message[: 4 * count].clone().view(torch.float32), message[4 * count :]


@dataclass(frozen=True)
class Identity(Codec):
    """The vector as it is; unbiased."""

    name: ClassVar[str] = "none"

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        return x.clone()

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        return message

    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        return like.new_empty(numel(shapes))


@dataclass(frozen=True)
class BF16(Codec):
    """bfloat16, 16 bits for a number, rounded to the nearest; biased."""

    name: ClassVar[str] = "bf16"

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        return x.bfloat16()

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        return message.to(like.dtype)

    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        import torch

        return like.new_empty(numel(shapes), dtype=torch.bfloat16)


@dataclass(frozen=True)
class Int8(Codec):
    """8 bits for a number: ``round(127 x / max|x|)`` and a scale for each tensor; biased."""

    name: ClassVar[str] = "int8"

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        parts = [part.float() for part in tensors_in(x, shapes)]
        scales = torch.stack([part.abs().max() for part in parts])
        levels = [
            (127 * part / scale).round().to(torch.int8) if scale > 0 else part.to(torch.int8)
            for part, scale in zip(parts, scales, strict=True)
        ]
        return torch.cat([as_bytes(scales), as_bytes(torch.cat(levels))])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        import torch

        scales, rest = from_bytes(message, len(shapes))
        levels = tensors_in(rest.view(torch.int8).to(like.dtype), shapes)
        return torch.cat(
            [part * (s / 127).to(like) for part, s in zip(levels, scales, strict=True)]
        )

    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        import torch

        return like.new_empty(4 * len(shapes) + numel(shapes), dtype=torch.uint8)


@dataclass(frozen=True)
class FP4(Codec):
    """4 bits for a number, E3M0: a sign, and zero or one of seven powers of two; biased.

    Magnitudes are ``s {0, 2^-6, ..., 2^0}`` with ``s = 2^floor(log2 max|x|)`` for each tensor, to
    the nearest, ties away from zero, larger ones cut off. Streaming DiLoCo's paper names the format
    but neither scale nor rounding.
    """

    name: ClassVar[str] = "fp4"

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        parts = [part.float() for part in tensors_in(x, shapes)]
        tops = torch.stack([part.abs().max() for part in parts])
        # frexp: max|x| = m 2^e with m in [0.5, 1)
        scales = torch.where(
            tops > 0, torch.ldexp(torch.ones_like(tops), torch.frexp(tops)[1] - 1), 0.0
        )
        levels = []
        for part, scale in zip(parts, scales, strict=True):
            size = part.abs() / scale if scale > 0 else torch.zeros_like(part)
            # Halfway between neighbours: 2^-7, then 1.5 2^-6, ..., 1.5 2^-1.
            bounds = torch.tensor([2.0**-7, *(1.5 * 2.0**e for e in range(-6, 0))])
            field = torch.bucketize(size, bounds, right=True)
            levels.append(field + 8 * (part < 0))
        return torch.cat([as_bytes(scales), pack(torch.cat(levels), 4)])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        import torch

        scales, rest = from_bytes(message, len(shapes))
        codes = unpack(rest, 4, sum(map(prod, shapes)))
        sizes = torch.tensor([0.0, *(2.0**e for e in range(-6, 1))], dtype=like.dtype)
        values = torch.where(codes >= 8, -1, 1) * sizes[codes % 8]
        parts = zip(tensors_in(values, shapes), scales, strict=True)
        return torch.cat([part * scale.to(like) for part, scale in parts])

    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        import torch

        return like.new_empty(4 * len(shapes) + packed_bytes(numel(shapes), 4), dtype=torch.uint8)


@dataclass(frozen=True)
class TwoBit(Codec):
    """2 bits for a number, and five numbers for each tensor; biased, but the sum is kept.

    With s the mean of a tensor and w = 6/4 of its standard deviation, a number's code is
    ``clip(round((x - s) / w + 2), 0, 3)``; it is decoded as the mean of the numbers of its code
    (Sarfi et al. 2025).
    """

    name: ClassVar[str] = "two_bit"

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        heads, codes = [], []
        for part in tensors_in(x.float(), shapes):
            code, means = two_bits(part)
            heads.append(means)
            codes.append(code)
        return torch.cat([as_bytes(torch.cat(heads)), pack(torch.cat(codes), 2)])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        import torch

        heads, rest = from_bytes(message, 5 * len(shapes))
        codes = tensors_in(unpack(rest, 2, sum(map(prod, shapes))), shapes)
        parts = zip(codes, heads.view(-1, 5), strict=True)
        return torch.cat([from_two_bits(code, means) for code, means in parts]).to(like.dtype)

    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        import torch

        return like.new_empty(20 * len(shapes) + packed_bytes(numel(shapes), 2), dtype=torch.uint8)


def two_bits(values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [n] of float32 ``values`` [n], and [5]: their mean, and for each code the mean of the
    differences to it.
    """
    import torch

    mean = values.mean()
    deviation = values.std() if len(values) > 1 else values.new_zeros(())
    apart = values - mean
    width = 6 * deviation / 4
    code = (apart / width + 2).round().clamp(0, 3).long() if width > 0 else apart.long() * 0 + 2
    sums = torch.zeros(4).index_add_(0, code, apart)
    counts = torch.bincount(code, minlength=4)
    return code, torch.cat([mean[None], sums / counts.clamp(min=1)])


def from_two_bits(code: Tensor, means: Tensor) -> Tensor:
    """The values [n] of codes [n]."""
    return means[0] + means[1:][code]


@dataclass(frozen=True)
class TopK(Codec):
    """The ``k`` largest of every chunk, with their places; biased.

    Chunks are blocks of a matrix, ``side`` on each side, or ``side ** 2`` numbers of a vector in a
    row. At the edges, blocks are smaller, and keep all they have if that is less than ``k``.

    k: numbers kept of a chunk
    side: side of a chunk
    bits: of a kept number: 32, or 2, as the codec two_bit
    """

    k: int = 64
    side: int = 64
    bits: Literal[2, 32] = 32
    name: ClassVar[str] = "top_k"

    def __post_init__(self) -> None:
        check_least(1, "algo.codec", self, "k", "side")
        if self.k > self.side**2:
            raise ConfigError(
                "algo.codec.k", f"{self.k} must be at most {self.side**2}, the size of a chunk."
            )

    @property
    def place_bits(self) -> int:
        return max(1, (self.side**2 - 1).bit_length())

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        values, places = [], []
        for part, shape in zip(tensors_in(x, shapes), shapes, strict=True):
            kept = []
            for chunk in chunks_of(shape, self.side):
                inside = part[chunk]
                top = inside.abs().topk(min(self.k, len(inside))).indices.sort().values
                kept.append(inside[top])
                places.append(top)
            values.append(torch.cat(kept).float())
        packed = pack(torch.cat(places), self.place_bits)
        if self.bits == 32:
            return torch.cat([as_bytes(torch.cat(values)), packed])
        coded = [two_bits(each) for each in values]
        heads = as_bytes(torch.cat([means for _, means in coded]))
        return torch.cat([heads, pack(torch.cat([code for code, _ in coded]), 2), packed])

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        import torch

        chunks = [list(chunks_of(shape, self.side)) for shape in shapes]
        counts = [[min(self.k, len(chunk)) for chunk in each] for each in chunks]
        per_tensor = [sum(each) for each in counts]
        if self.bits == 2:
            heads, rest = from_bytes(message, 5 * len(shapes))
            cut = -(-2 * sum(per_tensor) // 8)
            codes = unpack(rest[:cut], 2, sum(per_tensor)).split_with_sizes(per_tensor)
            values = [from_two_bits(c, m) for c, m in zip(codes, heads.view(-1, 5), strict=True)]
            rest = rest[cut:]
        else:
            kept, rest = from_bytes(message, sum(per_tensor))
            values = list(kept.split_with_sizes(per_tensor))
        places = unpack(rest, self.place_bits, sum(per_tensor)).split_with_sizes(per_tensor)
        out = []
        for shape, blocks, sizes, v, p in zip(shapes, chunks, counts, values, places, strict=True):
            part = torch.zeros(prod(shape), dtype=like.dtype)
            for chunk, inside, at in zip(
                blocks, v.split_with_sizes(sizes), p.split_with_sizes(sizes), strict=True
            ):
                part[chunk[at]] = inside.to(like.dtype)
            out.append(part)
        return torch.cat(out)

    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        import torch

        kept = sum(
            count * min(self.k, size)
            for shape in shapes
            for size, count in chunk_sizes(shape, self.side)
        )
        values = 4 * kept if self.bits == 32 else 20 * len(shapes) + packed_bytes(kept, 2)
        return like.new_empty(values + packed_bytes(kept, self.place_bits), dtype=torch.uint8)


def chunks_of(shape: Shape, side: int) -> Iterator[Tensor]:
    """The places [m] within a flat tensor of each of its chunks."""
    import torch

    places = torch.arange(prod(shape))
    if len(shape) < 2:
        yield from torch.split(places, side**2)
        return
    for rows in torch.split(places.view(shape[0], -1), side, 0):
        for block in torch.split(rows, side, 1):
            yield block.reshape(-1)


def chunk_sizes(shape: Shape, side: int) -> Iterator[tuple[int, int]]:
    """Size and number of the chunks of `chunks_of`."""
    if len(shape) < 2:
        yield from pieces(prod(shape), side**2)
        return
    for height, rows in pieces(shape[0], side):
        for width, columns in pieces(prod(shape[1:]), side):
            yield height * width, rows * columns


def pieces(length: int, most: int) -> Iterator[tuple[int, int]]:
    """Length and number of the pieces of at most ``most``."""
    full, rest = divmod(length, most)
    yield from ((most, full), (rest, 1)) if rest else ((most, full),)


@dataclass(frozen=True)
class RandomK(Codec):
    """A random share of the numbers, scaled up by its inverse; unbiased.

    Not scaled where an algorithm sends later what is lost. Receivers know the seed of the places,
    so these are not sent.

    share: of the numbers that are sent
    """

    share: float = 0.01
    name: ClassVar[str] = "random_k"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError("algo.codec.share", f"{self.share} must be above 0 and at most 1.")

    def places(self, count: int, seed: int) -> Tensor:
        import torch

        random = torch.Generator().manual_seed(seed)
        return torch.randperm(count, generator=random)[: self.kept(count)]

    def kept(self, count: int) -> int:
        return max(1, round(self.share * count))

    def scale(self, count: int) -> float:
        return count / self.kept(count)

    @property
    def contraction(self) -> Codec:
        return UnscaledRandomK(self.share)

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        return x[self.places(len(x), seed)] * self.scale(len(x))

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        import torch

        count = sum(map(prod, shapes))
        out = torch.zeros(count, dtype=like.dtype)
        out[self.places(count, seed)] = message
        return out

    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        return like.new_empty(self.kept(numel(shapes)))


@dataclass(frozen=True)
class UnscaledRandomK(RandomK):
    """A random share of the numbers, as they are."""

    def scale(self, count: int) -> float:
        return 1.0


@dataclass(frozen=True)
class LowRank(Codec):
    """A matrix as the product of two thin ones, from one power iteration; biased.

    ``p = orthonormal(m q)`` and ``m^T p`` are sent, with ``q`` random, from a seed that receivers
    know (Vogels et al. 2019, of each worker's own matrix). Vectors are sent as they are.

    rank: columns of the thin matrices
    """

    rank: int = 2
    name: ClassVar[str] = "low_rank"

    def __post_init__(self) -> None:
        check_least(1, "algo.codec", self, "rank")

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        """Lengths of the two factors of a tensor of this shape; of the tensor, if it is shorter."""
        rows, columns = shape[0] if shape else 1, prod(shape[1:])
        thin = (rows * self.rank, columns * self.rank)
        return thin if sum(thin) < rows * columns else (rows * columns,)

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        generator, sent = torch.Generator().manual_seed(seed), []
        for part, shape in zip(tensors_in(x, shapes), shapes, strict=True):
            if len(self.sizes(shape)) == 1:
                sent.append(part)
                continue
            matrix = part.view(shape[0], -1)
            start = torch.randn(matrix.shape[1], self.rank, generator=generator, dtype=x.dtype)
            p = torch.linalg.qr(matrix @ start).Q
            sent += [p.reshape(-1), (matrix.T @ p).reshape(-1)]
        return torch.cat(sent)

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        import torch

        out, sizes = [], [self.sizes(shape) for shape in shapes]
        parts = iter(message.split_with_sizes([size for each in sizes for size in each]))
        for each in sizes:
            first = next(parts)
            if len(each) > 1:
                first = (first.view(-1, self.rank) @ next(parts).view(-1, self.rank).T).reshape(-1)
            out.append(first)
        return torch.cat(out)

    def blank(self, shapes: Sequence[Shape], like: Tensor) -> Tensor:
        return like.new_empty(sum(size for shape in shapes for size in self.sizes(shape)))


def codes(algo: object) -> bool:
    """Whether an algorithm has a codec that does something."""
    own = [getattr(algo, field.name) for field in fields(algo)]  # type: ignore[arg-type]
    return any(isinstance(each, Codec) and not isinstance(each, Identity) for each in own)
