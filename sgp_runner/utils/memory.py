"""Settings of the machine for runs that work on vectors of a hundred megabytes at every step. Call
them before the first tensor is made.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def use_huge_pages() -> None:
    """Let PyTorch ask for huge pages: the system clears a long vector in a tenth of the steps."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed_memory() -> None:
    """Let the C library keep what is freed for what is allocated next, as PyTorch does on GPUs.

    Otherwise it gives a long vector back to the system, which has to clear its pages again for the
    next one. For processes that allocate the same sizes in every step. Only glibc can do this.
    """
    import ctypes

    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for setting, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (ARENA_MAX, 1)):
            library.mallopt(setting, value)


def flush_denormals() -> None:
    """Treat numbers below the smallest normal one as zero, as GPUs do: momentum that fades away
    costs many times more otherwise.
    """
    import torch

    torch.set_flush_denormal(True)  # threads that are started later inherit it


@contextmanager
def few_collections(none: bool) -> Iterator[None]:
    """Python does not look through what exists now for garbage: thousands of workers, again and
    again. ``none``: nor through anything.
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
