"""The modules of a GPT: rotary positions (Su et al. 2021), pre-norm (Radford et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sgp_runner.models.attention import call, call_checkpointed

STD = 0.02  # std of initial weights; the last weights of a sub-layer have it / sqrt(2 layers)


class Decoder(nn.Module):
    """A decoder from int64 tokens [B, T] to logits [B, T, vocabulary], causal in t."""

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        width: int,
        heads: int,
        checkpoint_blocks: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self.call = call_checkpointed if checkpoint_blocks else call
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, 0, STD * (2 * layers) ** -0.5 if last else STD)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        block = self.blocks[0]
        assert isinstance(block, DecoderBlock)
        turn = rotation(tokens.shape[-1], block.width // block.heads, x)
        for block in self.blocks:
            x = self.call(block, x, turn)
        return F.linear(self.norm(x), self.embedding.weight)


class DecoderBlock(nn.Module):
    """Causal self-attention and a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        nn.Module.__init__(self)
        self.width, self.heads = width, heads
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.out(self.attention(self.norm1(x), turn))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out

    def attention(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B, T, width]; every position attends to itself and earlier positions."""
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-2, -4)  # [B, h, T, 3, d]
        q, k, v = heads.unbind(-2)
        mixed = F.scaled_dot_product_attention(
            rotated(q, turn), rotated(k, turn), v, is_causal=True
        )
        return mixed.movedim(-3, -2).flatten(-2)


def rotation(length: int, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [T, size / 2] of the rotation angles of a head."""
    frequency = 1e4 ** (-torch.arange(0, size, 2, dtype=like.dtype, device=like.device) / size)
    place = torch.arange(length, dtype=like.dtype, device=like.device)
    angle = place[:, None] * frequency
    return angle.cos(), angle.sin()


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Return [..., T, size], with each pair (i, i + size / 2) rotated by its angle."""
    cos, sin = turn
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
