"""Settings of the machine for runs that work on vectors of a hundred megabytes at every step. Call them before the first tensor is made."""

from __future__ import annotations

import os


def use_huge_pages() -> None:
    """Let PyTorch ask for huge pages: the system clears a long vector in a tenth of the steps."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def flush_denormals() -> None:
    """Treat numbers below the smallest normal one as zero, as GPUs do: momentum that fades away costs many times more otherwise."""
    import torch

    torch.set_flush_denormal(True)  # threads that are started later inherit it
