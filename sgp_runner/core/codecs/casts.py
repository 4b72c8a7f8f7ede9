"""Codecs that send every number, unchanged or as a bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.core.codecs.codec import Codec, Shape
from sgp_runner.core.optim.optimizer import Shapes
from sgp_runner.core.parts import Cut

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Identity(Codec):
    """The vector unchanged; unbiased."""

    name: ClassVar[str] = "none"
    dtype: ClassVar[str | None] = None
    cut: ClassVar[Cut | None] = "elements"

    def message_lengths(self, shapes: Shapes) -> list[int]:
        return []

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        return x.clone()

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        return message


@dataclass(frozen=True)
class BF16(Codec):
    """bfloat16, 16 bits per number, rounded to the nearest; biased."""

    name: ClassVar[str] = "bf16"
    dtype: ClassVar[str | None] = "bfloat16"
    cut: ClassVar[Cut | None] = "elements"

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        return x.bfloat16()

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        return message.to(like.dtype)


@dataclass(frozen=True)
class Truncate16(BF16):
    """bfloat16 by truncating the low 16 bits of float32, towards zero (Li et al. 2018)."""

    name: ClassVar[str] = "truncate16"

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        import torch

        bits = x.float().view(torch.int32) & -65536
        return bits.view(torch.float32).bfloat16()


def codes(algo: object) -> bool:
    """Return whether an algorithm uses a codec other than `Identity`."""
    values = [getattr(algo, field.name) for field in fields(algo)]  # type: ignore[arg-type]
    return any(isinstance(value, Codec) and not isinstance(value, Identity) for value in values)
