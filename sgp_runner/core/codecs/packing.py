"""Packing of integers of a few bits, and of float32 numbers, into bytes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from sgp_runner.core.flat import to_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@functools.cache
def constants(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ``numbers`` as a tensor on ``device``; the copy is made once and cached."""
    import torch

    return to_device(torch.tensor(numbers, dtype=dtype), device)


def packed_bytes(count: int, bits: int) -> int:
    """Return the size of ``count`` packed numbers, in bytes."""
    return -(-count * bits // 8)


def pack(values: Tensor, bits: int) -> Tensor:
    """Pack integers [n] of ``bits`` bits each into uint8 [ceil(n bits / 8)], without gaps."""
    import torch

    if bits == 8:
        return values.byte()
    if 8 % bits:  # no whole numbers in a byte
        positions = torch.arange(bits, device=values.device)
        values, bits = ((values.long()[:, None] >> positions) & 1).byte().view(-1), 1
    flat = values.byte()
    if missing := -len(flat) % (8 // bits):
        flat = torch.nn.functional.pad(flat, (0, missing))
    while bits < 8:
        flat = (flat[1::2] << bits).bitwise_or_(flat[::2])
        bits *= 2
    return flat


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Invert `pack`: return the numbers [count], as uint8 if they fit in whole bytes."""
    import torch

    if bits == 8:
        return packed
    width = 1 if 8 % bits else bits
    places = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)
    flat = (packed[:, None] >> places).bitwise_and_(2**width - 1).view(-1)[: bits * count // width]
    if width == bits:
        return flat
    return (flat.view(count, bits).long() << torch.arange(bits, device=packed.device)).sum(1)


def as_bytes(x: Tensor) -> Tensor:
    """Return the bytes of a tensor, as uint8."""
    import torch

    return x.contiguous().view(-1).view(torch.uint8)


def from_bytes(message: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first ``count`` float32 numbers of a message, and the remaining bytes."""
    import torch

    return message[: 4 * count].clone().view(torch.float32), message[4 * count :]
