"""Modules that are a single parameter vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Diagonal(nn.Module):
    """``scale * x``: inputs and outputs are [B, d], the parameter x is [d]."""

    def __init__(self, dimension: int) -> None:
        nn.Module.__init__(self)
        self.x = nn.Parameter(torch.zeros(dimension))

    def forward(self, scale: Tensor) -> Tensor:
        return scale * self.x


class Placeholder(nn.Module):
    """A parameter vector of zeros [grain] without a forward pass."""

    def __init__(self, grain: int) -> None:
        nn.Module.__init__(self)
        self.x = nn.Parameter(torch.zeros(grain))

    def forward(self, *inputs: Tensor) -> Tensor:
        raise RuntimeError(
            "model=timing_only has no forward pass: it can be neither trained nor evaluated"
        )
