"""Collectives of small values, as JSON.

Unpickling would run code chosen by the sender. ``None``, Booleans, numbers, strings, lists and
mappings are restored unchanged, tuples as lists; floats may be infinite or NaN.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from sgp_runner.utils.errors import RankFailed

MAX_BYTES = 2**24  # longest value
STRANGER_HINT = "is it a rank of this run?"


def pack(value: object) -> Tensor:
    """Encode ``value`` as bytes: uint8 [B]."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def unpack(data: Tensor, rank: int) -> Any:
    """Decode ``data``, uint8 [B] from process ``rank``. Raises RankFailed if it is not JSON."""
    try:
        return json.loads(data.numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise RankFailed(
            f"rank {rank} sent something that is not JSON ({type(error).__name__}): {STRANGER_HINT}"
        ) from error


def check_lengths(lengths: list[int], ranks: list[int]) -> None:
    """Raise RankFailed for an overlong value before memory is allocated."""
    for length, rank in zip(lengths, ranks, strict=True):
        if not 0 < length <= MAX_BYTES:
            raise RankFailed(
                f"rank {rank} announced a value of {length} bytes, "
                f"more than {MAX_BYTES} or none: {STRANGER_HINT}"
            )


def all_gather(value: object, group: dist.ProcessGroup) -> list[Any]:
    """Return the values of all ranks of ``group``, in rank order."""
    data, ranks = pack(value), dist.get_process_group_ranks(group)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in ranks]
    dist.all_gather(lengths, torch.tensor([len(data)]), group=group)
    sizes = [int(length) for length in lengths]
    check_lengths(sizes, ranks)
    parts = [torch.empty(max(sizes), dtype=torch.uint8) for _ in ranks]
    dist.all_gather(parts, pad(data, (0, max(sizes) - len(data))), group=group)
    return [
        unpack(part[:length], rank) for part, length, rank in zip(parts, sizes, ranks, strict=True)
    ]
