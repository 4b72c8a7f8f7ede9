"""Compressed all-reduce: a ring whose hops carry encoded chunks (Li et al. 2018, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sgp_runner.algorithms.codecs import check_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class Codec:
    """A lossy encoding of messages.

    encode: floats [m] to a contiguous message.
    decode: a message and a tensor of the original type to floats [m].
    """

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor, Tensor], Tensor]


def truncate16(t: Tensor) -> Tensor:
    """bfloat16 by dropping the low 16 bits of float32 (towards zero), not by rounding."""
    import torch

    bits = t.float().view(torch.int32) & -65536
    return bits.view(torch.float32).bfloat16()


def quantize8(t: Tensor) -> Tensor:
    """int8 [m + 4]: ``round(127 t / max|t|)``, then the float32 scale in four bytes."""
    import torch

    scale = t.abs().max().float() if t.numel() else t.new_zeros((), dtype=torch.float32)
    levels = torch.where(scale > 0, t.float() / scale * 127, 0.0).round_().to(torch.int8)
    return torch.cat([levels, scale.view(1).view(torch.int8)])


def dequantize8(message: Tensor, like: Tensor) -> Tensor:
    import torch

    scale = message[-4:].clone().view(torch.float32)
    return message[:-4].to(like.dtype) * (scale / 127).to(like.dtype)


CODECS = {
    "truncate16": Codec(truncate16, lambda message, like: message.to(like.dtype)),
    "quantize8": Codec(quantize8, dequantize8),
}


def encoded(worker: Worker, codec: str, chunks: Sequence[Tensor], number: int) -> Tensor:
    """The message of one of the chunks of a vector [D]. Raises NotFinite."""
    check_finite(chunks[number], worker.shapes, sum(map(len, chunks[:number])))
    return CODECS[codec].encode(chunks[number])


def start_ring(worker: Worker, t: Tensor, codec: str, tag: int) -> dict[str, Any]:
    """Send the first chunk of ``t`` [D].

    Returns the state that `finish_ring` needs, which a checkpoint can hold.
    """
    rank, size = worker.rank, worker.size
    if size > 1:
        message = encoded(worker, codec, t.tensor_split(size), rank)
        worker.comm.send((rank + 1) % size, message, tag)
    return {"t": t, "codec": codec, "tag": tag, "hop": 0}


async def finish_ring(worker: Worker, ring: dict[str, Any]) -> Tensor:
    """Mean of ``t`` over all workers, in place.

    Every hop is encoded, and all workers end with the same bytes.
    """
    t: Tensor = ring["t"]
    comm, rank, size = worker.comm, worker.rank, worker.size
    codec, tag = CODECS[ring["codec"]], ring["tag"]
    chunks = t.tensor_split(size)  # views
    right, left = (rank + 1) % size, (rank - 1) % size
    while (hop := ring["hop"]) < 2 * (size - 1):
        message = await comm.recv(left, tag)
        number = (rank - hop - 1) % size
        chunk = chunks[number]  # as the left neighbour sent it
        if hop < size - 1:  # reduce-scatter
            chunk += codec.decode(message, chunk)
            if hop == size - 2:
                chunk /= size
            message = encoded(worker, ring["codec"], chunks, number)
        if hop >= size - 2:  # all-gather: pass messages on unchanged; decode as all others will
            chunk.copy_(codec.decode(message, chunk))
        ring["hop"] = hop + 1
        if hop + 1 < 2 * (size - 1):
            comm.send(right, message, tag)
    return t
