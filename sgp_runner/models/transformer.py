"""An encoder-decoder Transformer (Vaswani et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset, check_shares
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Transformer:
    """A Transformer with sinusoidal positions and layer norm before each sub-layer.

    width: width of embeddings and of every layer's output
    heads: attention heads; must divide the width
    feed_forward: hidden width of the feed-forward sub-layers
    encoder_layers: layers of the encoder
    decoder_layers: layers of the decoder
    dropout: probability after each sub-layer, in the feed-forward and on the embeddings
    shared_embedding: one matrix embeds both languages and computes the output logits
    checkpoint_blocks: whether the backward pass recomputes the activations of each block, which
        saves memory and takes a third more time
    """

    width: int = 64
    heads: int = 4
    feed_forward: int = 256
    encoder_layers: int = 2
    decoder_layers: int = 2
    dropout: float = 0.1
    shared_embedding: bool = True
    checkpoint_blocks: bool = False

    name: ClassVar[str] = "transformer"
    tasks: ClassVar[tuple[str, ...]] = ("translation",)
    default_data: ClassVar[str] = "numbers_en_de"
    trains: ClassVar[bool] = True

    @property
    def vectorizes(self) -> bool:
        """Return whether the gradient runs under vmap, which does not support recomputation."""
        return not self.checkpoint_blocks

    def __post_init__(self) -> None:
        check_least(
            1, "model", self, "width", "heads", "feed_forward", "encoder_layers", "decoder_layers"
        )
        if self.width % self.heads or self.width % 2:
            raise ConfigError(
                "model.width",
                f"{self.width} must be even and a multiple of model.heads={self.heads}.",
            )
        check_shares("model", self, dropout=0.1)

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.data.tasks import Translation
        from sgp_runner.models.encoder_decoder import EncoderDecoder

        assert isinstance(dataset.task, Translation)  # the only task in ``tasks``
        return EncoderDecoder(dataset.num_classes, dataset.task.pad, **vars(self))
