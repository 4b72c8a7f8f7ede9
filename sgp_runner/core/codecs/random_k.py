"""A random share of the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.core.codecs.codec import Codec, Shape, numel
from sgp_runner.core.flat import to_device
from sgp_runner.core.settings import check_range

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class RandomK(Codec):
    """A random share of the numbers, divided by the share; unbiased.

    With error feedback, the numbers are not divided. Receivers draw the same indices from the seed,
    so no indices are sent.

    share: share of the numbers to send
    """

    share: float = 0.01
    name: ClassVar[str] = "random_k"
    dtype: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check_range("(0, 1]", "algo.codec", self, "share")

    def indices(self, count: int, seed: int, device: torch.device) -> Tensor:
        """Return the places of the numbers that are sent, the same on every device."""
        import torch

        random = torch.Generator().manual_seed(seed)
        return to_device(torch.randperm(count, generator=random)[: self.kept(count)], device)

    def kept(self, count: int) -> int:
        return max(1, round(self.share * count))

    def scale(self, count: int) -> float:
        return count / self.kept(count)

    @property
    def for_error_feedback(self) -> Codec:
        return UnscaledRandomK(self.share)

    def to_message(self, x: Tensor, shapes: Sequence[Shape], seed: int) -> Tensor:
        return x[self.indices(len(x), seed, x.device)] * self.scale(len(x))

    def from_message(
        self, message: Tensor, shapes: Sequence[Shape], like: Tensor, seed: int
    ) -> Tensor:
        out = like.new_zeros(numel(shapes))
        out[self.indices(len(out), seed, out.device)] = message
        return out

    def length(self, shapes: Sequence[Shape]) -> int:
        return self.kept(numel(shapes))


@dataclass(frozen=True)
class UnscaledRandomK(RandomK):
    """A random share of the numbers, not scaled."""

    def scale(self, count: int) -> float:
        return 1.0
