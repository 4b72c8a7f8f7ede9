"""The Transformer module, built from torch's layers, with dropout that depends only on a seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgp_runner.models.attention import call, call_checkpointed
from sgp_runner.models.dropout import SeededDropout


class EncoderDecoder(nn.Module):
    """A model from int64 source [B, S] and target_in [B, T] to logits [B, T, vocabulary].

    Logits at t see target_in up to t. A source may end with ``pad``. The end of a target needs no
    mask, since no earlier position attends to it.
    """

    def __init__(
        self,
        vocabulary: int,
        pad: int,
        *,
        width: int,
        heads: int,
        feed_forward: int,
        encoder_layers: int,
        decoder_layers: int,
        dropout: float,
        shared_embedding: bool,
        checkpoint_blocks: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self.call = call_checkpointed if checkpoint_blocks else call
        self.pad = pad
        self.source_embedding = nn.Embedding(vocabulary, width)
        self.target_embedding = nn.Embedding(vocabulary, width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        numbers = itertools.count()
        self.source_dropout = SeededDropout(dropout, next(numbers))
        self.target_dropout = SeededDropout(dropout, next(numbers))
        size = (width, heads, feed_forward)
        layout: Any = {"dropout": 0, "batch_first": True, "norm_first": True}
        encoders = [nn.TransformerEncoderLayer(*size, **layout) for _ in range(encoder_layers)]
        decoders = [nn.TransformerDecoderLayer(*size, **layout) for _ in range(decoder_layers)]
        for layer in [*encoders, *decoders]:
            _seed_dropouts(layer, dropout, numbers)
        self.encoders = nn.ModuleList(encoders)
        self.decoders = nn.ModuleList(decoders)
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder_norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        for embedding in (self.source_embedding, self.target_embedding, self.output):
            nn.init.normal_(embedding.weight, 0, width**-0.5)
        if shared_embedding:
            self.target_embedding.weight = self.source_embedding.weight
            self.output.weight = self.source_embedding.weight

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        return self.decode(source, self.encode(source), target_in)

    def encode(self, source: Tensor) -> Tensor:
        """Return the memory [B, S, width]."""
        x = self.source_dropout(_embed(self.source_embedding, source))
        for layer in self.encoders:
            x = self.call(layer, x, src_key_padding_mask=source == self.pad)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(self, source: Tensor, memory: Tensor, target_in: Tensor) -> Tensor:
        """Return logits [B, T, vocabulary]; padding in ``source`` masks ``memory``."""
        x = self.target_dropout(_embed(self.target_embedding, target_in))
        length = target_in.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        for layer in self.decoders:
            x = self.call(
                layer,
                x,
                memory,
                tgt_mask=future,
                tgt_is_causal=True,
                memory_key_padding_mask=source == self.pad,
            )
        logits: Tensor = self.output(self.decoder_norm(x))
        return logits


def _seed_dropouts(layer: nn.Module, p: float, numbers: Iterator[int]) -> None:
    """Replace torch's dropout layers, whose masks depend on previous use of the generator."""
    for name, child in list(layer.named_children()):
        if isinstance(child, nn.Dropout):
            setattr(layer, name, SeededDropout(p, next(numbers)))


def _embed(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    """Return scaled embeddings plus sines and cosines of the position (paper, section 3.5)."""
    width = embedding.embedding_dim
    weight = embedding.weight
    position = torch.arange(ids.shape[-1], device=ids.device, dtype=weight.dtype)
    frequency = torch.exp(
        torch.arange(0, width, 2, device=ids.device, dtype=weight.dtype) * (-math.log(1e4) / width)
    )
    angle = position[:, None] * frequency
    return F.embedding(ids, weight) * math.sqrt(width) + torch.cat([angle.sin(), angle.cos()], -1)
