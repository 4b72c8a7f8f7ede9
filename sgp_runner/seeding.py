"""Seeds that depend on what is drawn (run, worker, step ...), never on the order in which it is drawn."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_of(*ints: int) -> int:
    """A 63-bit hash of a tuple of integers: the same on every machine, and ``(1, 23)`` differs from ``(12, 3)``."""
    text = ",".join(str(int(i)) for i in ints)
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*ints: int) -> torch.Generator:
    """A CPU generator seeded with ``seed_of(*ints)``."""
    import torch

    return torch.Generator().manual_seed(seed_of(*ints))
