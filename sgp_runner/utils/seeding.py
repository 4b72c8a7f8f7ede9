"""Seeds that depend on the purpose (run, worker, step ...), never on the order of draws."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# SplitMix64 (Steele, Lea and Flood 2014), as signed 64-bit integers; products wrap around.
GAMMA, _MIX1, _MIX2 = (
    c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def seed_of(*ints: int) -> int:
    """Return a 63-bit hash of integers, the same on every machine; (1, 23) differs from (12, 3)."""
    text = ",".join(str(int(i)) for i in ints)
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*ints: int) -> torch.Generator:
    """Return a CPU generator seeded with ``seed_of(*ints)``."""
    import torch

    return torch.Generator().manual_seed(seed_of(*ints))


def seeds_of(seed: int, indices: Tensor) -> Tensor:
    """Return, for each of ``indices`` (int64), a 64-bit hash (int64) of ``seed`` and the index."""
    import torch

    return mix(mix(torch.tensor(seed)) + indices * GAMMA)


def mix(z: Tensor) -> Tensor:
    """Apply the finaliser of SplitMix64; masks make the shifts of signed integers logical."""
    z = (z >> 30).bitwise_and_(2**34 - 1).bitwise_xor_(z).mul_(_MIX1)
    z = (z >> 27).bitwise_and_(2**37 - 1).bitwise_xor_(z).mul_(_MIX2)
    return (z >> 31).bitwise_and_(2**33 - 1).bitwise_xor_(z)
