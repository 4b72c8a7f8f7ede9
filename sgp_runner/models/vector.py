"""Modules that consist only of parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Diagonal(nn.Module):
    """``scale * x``, with inputs and outputs [B, d] and the parameter x [d]."""

    def __init__(self, dimension: int) -> None:
        nn.Module.__init__(self)
        self.x = nn.Parameter(torch.zeros(dimension))

    def forward(self, scale: Tensor) -> Tensor:
        return scale * self.x


class Placeholder(nn.Module):
    """A parameter vector [grain] of zeros without a forward pass."""

    def __init__(self, grain: int) -> None:
        nn.Module.__init__(self)
        self.x = nn.Parameter(torch.zeros(grain))

    def forward(self, *inputs: Tensor) -> Tensor:
        raise RuntimeError(
            "model=timing_only has no forward pass: it can be neither trained nor evaluated"
        )


class Hollow(nn.Module):
    """Parameters with names and shapes but without values, which take no memory."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        nn.Module.__init__(self)
        for name, shape in shapes.items():
            owner: nn.Module = self
            *parents, leaf = name.split(".")
            for parent in parents:
                if not hasattr(owner, parent):
                    owner.add_module(parent, nn.Module())
                owner = owner.get_submodule(parent)
            owner.register_parameter(leaf, nn.Parameter(torch.empty(shape, device="meta")))
