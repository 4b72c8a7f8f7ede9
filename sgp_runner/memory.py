"""Settings of the allocator for runs that make and drop vectors of a hundred megabytes at every step."""

from __future__ import annotations

import os


def use_huge_pages() -> None:
    """Let PyTorch ask for huge pages: the system clears a long vector in a tenth of the steps. Call it before the first tensor is made."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
