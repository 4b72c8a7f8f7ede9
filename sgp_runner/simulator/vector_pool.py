"""Memory for the vectors of a large model: parameters, messages and gradients, all of one size.

The C library would place vectors and the temporaries of layers into each other's gaps, and a
quarter of its memory would lie free in pieces. Slots of one size leave no gaps. Processes that are
forked later share them: they read parameters and write gradients where they are.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sgp_runner.core.mapped_memory import tensor_in, whole_pages

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class VectorPool:
    """``count`` slots of up to ``length`` numbers; memory is used from their first use on.

    free: the free slots; the last one, which has been in use most recently, is the next
    """

    def __init__(self, length: int, count: int, dtype: torch.dtype) -> None:
        self.dtype, self.slot_bytes = dtype, whole_pages(length * dtype.itemsize)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0)
        self.memory = mmap.mmap(-1, count * self.slot_bytes, flags=flags)
        self.slots, self.free = range(count), [*range(count)][::-1]
        self.begin = self.at(0, length).data_ptr()

    def at(self, slot: int, length: int, gone: Callable[[], None] | None = None) -> Tensor:
        """Return the vector [length] in a slot, which must not become free meanwhile."""
        return tensor_in(self.memory, slot * self.slot_bytes, length, self.dtype, gone)

    def empty(self, length: int) -> Tensor | None:
        """Return a vector [length] in a free slot, or None if there is none.

        The slot is free again once nothing uses its memory.
        """
        if not self.free:
            return None
        slot = self.free.pop()
        return self.at(slot, length, partial(self.free.append, slot))

    def empty_like(self, tensor: Tensor) -> Tensor | None:
        """Return `empty` for a vector that fills more than half a slot, else None."""
        fits = self.slot_bytes < 2 * tensor.nbytes <= 2 * self.slot_bytes
        return self.empty(tensor.numel()) if fits and tensor.dtype == self.dtype else None

    def slot_of(self, vector: Tensor) -> int | None:
        """Return the slot at whose beginning ``vector`` is, or None if it is elsewhere."""
        slot, offset = divmod(vector.data_ptr() - self.begin, self.slot_bytes)
        return slot if not offset and slot in self.slots else None

    def shared(self, vector: Tensor) -> Tensor:
        """Return a copy of ``vector`` in a slot; ``vector`` if it is in one, or none is free."""
        copy = None if self.slot_of(vector) is not None else self.empty(vector.numel())
        return vector if copy is None else copy.copy_(vector)
