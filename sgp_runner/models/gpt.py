"""A decoder-only Transformer for language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class GPT:
    """GPT with layer norm before each sub-layer, rotary positions and tied embeddings.

    layers: blocks of attention and feed-forward
    width: width of embeddings and of every block's output; the feed-forward is four times as wide
    heads: attention heads; width / heads must be an even number
    checkpoint_blocks: whether the backward pass recomputes the activations of each block, which
        saves memory and takes a third more time
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    checkpoint_blocks: bool = False

    name: ClassVar[str] = "gpt"
    tasks: ClassVar[tuple[str, ...]] = ("language",)
    default_data: ClassVar[str] = "grammar"
    trains: ClassVar[bool] = True

    @property
    def vectorizes(self) -> bool:
        """Return whether the gradient runs under vmap, which does not support recomputation."""
        return not self.checkpoint_blocks

    def __post_init__(self) -> None:
        check_least(1, "model", self, "layers", "width", "heads")
        if self.width % (2 * self.heads):
            raise ConfigError(
                "model.width",
                f"{self.width} must be a multiple of 2 * model.heads = {2 * self.heads}.",
            )

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.decoder import Decoder

        return Decoder(dataset.num_classes, **vars(self))
