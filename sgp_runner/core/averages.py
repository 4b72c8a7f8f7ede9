"""Pending means over all workers: exact all-reduces, or rings that send encoded chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from sgp_runner.core.codecs.codec import Codec, check_finite
from sgp_runner.core.worker import Worker

if TYPE_CHECKING:
    from torch import Tensor


class Averages:
    """A queue of pending means, oldest first, which is part of the worker's state.

    codec: encodes the chunks of a ring (Li et al. 2018, section 3.3); None: exact all-reduces
    """

    def __init__(self, worker: Worker, codec: Codec | None = None) -> None:
        self.worker, self.codec = worker, codec
        self.pipeline: list[Any] = worker.state("pipeline", list)
        self.means: deque[Awaitable[Tensor]] = deque(map(self.under_way, self.pipeline))

    def __len__(self) -> int:
        return len(self.means)

    async def start(self, x: Tensor) -> None:
        """Start averaging ``x`` [D] over all workers; the caller must not use ``x`` afterwards."""
        worker = self.worker
        if self.codec is None:
            self.pipeline.append(worker.comm.all_reduce(x))
        else:
            ring = {"t": x, "tag": worker.step + 1, "hop": 0}
            if worker.size > 1:
                chunks = x.tensor_split(worker.size)
                message = self.encoded(chunks, worker.rank)
                await worker.code("encode", self.codec.name, len(chunks[worker.rank]))
                self.send(ring, message)
            self.pipeline.append(ring)
        self.means.append(self.under_way(self.pipeline[-1]))

    async def pop(self) -> Tensor:
        """Wait for the oldest mean [D]; remove it from the queue and return it."""
        mean, worker = await self.means.popleft(), self.worker
        if self.codec is not None and worker.size > 1:
            last = mean.tensor_split(worker.size)[(worker.rank + 2) % worker.size]
            await worker.code("decode", self.codec.name, len(last), "always")
        del self.pipeline[0]
        return mean

    def under_way(self, pending: Any) -> Awaitable[Tensor]:
        return (
            pending if self.codec is None else self.worker.spawn(self.finish(self.codec, pending))
        )

    def encoded(self, chunks: tuple[Tensor, ...], number: int) -> Tensor:
        """Return chunk ``number`` of a vector [D] as a message. Raises NotFinite."""
        assert self.codec is not None
        chunk = chunks[number]
        begin = sum(map(len, chunks[:number]))
        check_finite(chunk, self.worker.shapes, begin, self.worker.check_later)
        return self.codec.to_message(chunk, [tuple(chunk.shape)], 0)

    def send(self, ring: dict[str, Any], message: Tensor) -> None:
        """Send a message to the right neighbour."""
        self.worker.comm.send((self.worker.rank + 1) % self.worker.size, message, ring["tag"])

    async def finish(self, codec: Codec, ring: dict[str, Any]) -> Tensor:
        """Replace ``t`` by its mean over all workers and return it.

        Every hop is encoded, and all workers end up with the same bytes.
        """
        t: Tensor = ring["t"]
        rank, size = self.worker.rank, self.worker.size
        chunks = t.tensor_split(size)  # views
        while (hop := ring["hop"]) < 2 * (size - 1):
            message = await self.worker.comm.recv((rank - 1) % size, ring["tag"])
            number = (rank - hop - 1) % size
            chunk = chunks[number]  # the chunk that the left neighbour sent
            if hop < size - 1:  # reduce-scatter
                chunk += codec.from_message(message, [tuple(chunk.shape)], chunk, 0)
                if hop == size - 2:
                    chunk /= size
                message = self.encoded(chunks, number)
            if hop >= size - 2:  # all-gather: forward the message unchanged; all decode the same
                chunk.copy_(codec.from_message(message, [tuple(chunk.shape)], chunk, 0))
            ring["hop"] = hop + 1
            if hop + 1 < 2 * (size - 1):  # `pop` decodes the last message
                reduces, decodes = hop < size - 1, 1 + (hop == size - 2)
                await self.worker.code("encode", codec.name, reduces * len(chunk), "never")
                await self.worker.code("decode", codec.name, decodes * len(chunk), "never")
                self.send(ring, message)
        return t
