"""Packing of whole numbers with few bits, and of float32 numbers, into bytes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from sgp_runner.core.flat import to_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@functools.cache
def constants(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``numbers`` as a tensor, copied to its device once."""
    import torch

    return to_device(torch.tensor(numbers, dtype=dtype), device)


def packed_bytes(count: int, bits: int) -> int:
    """Return the size of ``count`` packed numbers, in bytes."""
    return -(-count * bits // 8)


def pack(values: Tensor, bits: int) -> Tensor:
    """Pack whole numbers [n] of ``bits`` bits each without gaps: uint8 [ceil(n bits / 8)]."""
    import torch

    if bits == 8:
        return values.byte()
    flat = values.byte()
    if bits > 1:
        positions = torch.arange(bits, device=values.device)
        flat = ((values.long()[:, None] >> positions) & 1).byte().reshape(-1)
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    places = torch.arange(8, dtype=torch.uint8, device=values.device)
    return (flat << places).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Invert `pack`: return the numbers [count]."""
    import torch

    if bits == 8:
        return packed
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    flat = ((packed[:, None] >> places) & 1).reshape(-1)[: bits * count]
    if bits == 1:
        return flat
    return (flat.view(count, bits).long() << torch.arange(bits, device=packed.device)).sum(1)


def as_bytes(x: Tensor) -> Tensor:
    """Return the bytes of a contiguous tensor."""
    import torch

    return x.contiguous().view(-1).view(torch.uint8)


def from_bytes(message: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first ``count`` float32 numbers of a message, and the remaining bytes."""
    import torch

    return message[: 4 * count].clone().view(torch.float32), message[4 * count :]
