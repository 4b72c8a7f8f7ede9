"""Dropout without hidden state: the mask is a hash of (seed, layer, element).

A loop and vmap therefore draw the same mask.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sgp_runner.utils.seeding import GAMMA, mix

# 16-bit numbers per hash. Hashing dominates the cost, so each hash decides four elements.
_LANES = 4


def is_alone(x: Tensor) -> bool:
    """Return whether ``x`` belongs to one worker, not to several batched by vmap."""
    compiling = torch.compiler.is_compiling()
    return compiling or not torch._C._functorch.is_functorch_wrapped_tensor(x)


class SeededDropout(nn.Module):
    """Dropout of elements with probability ``p`` (to the nearest 1/65536), keeping the mean.

    In eval mode or at p = 0 the module is the identity; models check that p is in [0, 1). The
    caller sets the int64 buffer ``dropout_seed`` [] for each (worker, step), in place or through
    ``functional_call``; the buffer is not part of the state dict. ``layer`` distinguishes the
    dropout layers of one module.
    """

    dropout_seed: Tensor

    def __init__(self, p: float, layer: int) -> None:
        nn.Module.__init__(self)
        self.p = p
        self.layer = layer
        self.register_buffer("dropout_seed", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        drop = round(self.p * 2**16)  # number of lane values, out of 65,536, that zero an element
        counter = torch.arange(-(-x.numel() // _LANES), device=x.device)
        stream = mix(mix(self.dropout_seed) + self.layer)
        lanes = mix(torch.add(stream, counter, alpha=GAMMA)).view(torch.int16)
        keep = (lanes[: x.numel()] >= drop - 2**15).view(x.shape)
        return x * (keep * (2**16 / (2**16 - drop)))

    def extra_repr(self) -> str:
        return f"p={self.p}, layer={self.layer}"


class DrawsFromTorch(nn.Module):
    """A module with dropout layers that draw from torch's global generators.

    The caller seeds the generators for each (worker, step).
    """


def dropout_buffers(module: nn.Module) -> list[str]:
    """Return the names of the seed buffers in ``module``; all of them get the same seed."""
    return [name for name, _ in module.named_buffers() if name.rpartition(".")[2] == "dropout_seed"]
