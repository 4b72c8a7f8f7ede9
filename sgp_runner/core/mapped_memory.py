"""Tensors in mapped memory, which processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from mmap import PAGESIZE, mmap
from typing import TYPE_CHECKING
from weakref import finalize

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNMENT = 64  # bytes


def whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGESIZE) * PAGESIZE


def tensor_in(
    mapping: mmap,
    offset: int,
    length: int,
    dtype: torch.dtype,
    gone: Callable[[], None] | None = None,
) -> Tensor:
    """Return the tensor [length] at ``offset``; call ``gone`` once nothing uses its memory."""
    import torch

    memory = memoryview(mapping)[offset : offset + length * dtype.itemsize]
    if gone is not None:
        finalize(memory, gone).atexit = False
    return torch.frombuffer(memory, dtype=dtype)


def shared(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return new tensors of these shapes and types, in memory shared with forked processes."""
    begins, size = [], 0
    for tensor in tensors:
        begins.append(size)
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    memory = mmap(-1, max(size, 1))
    return [
        tensor_in(memory, begin, tensor.numel(), tensor.dtype).view(tensor.shape)
        for tensor, begin in zip(tensors, begins, strict=True)
    ]
