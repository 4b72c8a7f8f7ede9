"""Process settings for runs that handle vectors of a hundred megabytes at every step.

Call them before the first tensor is made.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def use_huge_pages() -> None:
    """Let PyTorch ask for huge pages, which the system clears in a tenth of the time."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next allocation, as PyTorch does on GPUs.

    Otherwise it returns a long vector to the system, which has to clear its pages again for the
    next one. For processes that allocate the same sizes in every step. Only glibc supports this.
    """
    import ctypes

    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for setting, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (ARENA_MAX, 1)):
            library.mallopt(setting, value)


def flush_denormals() -> None:
    """Flush denormal numbers to zero, as GPUs do.

    Otherwise momentum that fades away costs many times more.
    """
    import torch

    torch.set_flush_denormal(True)  # inherited by threads started later


@contextmanager
def few_collections(none: bool) -> Iterator[None]:
    """Exclude existing objects from garbage collection; with ``none``, disable it.

    Otherwise Python scans thousands of workers again and again.
    """
    before = gc.isenabled()
    gc.freeze()
    if none:
        gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if before:
            gc.enable()
