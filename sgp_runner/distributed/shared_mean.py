"""Means over the processes of one machine, through shared memory.

Each process writes its vector into a slot of its file. After a barrier, each sums its part of all
vectors and overwrites that part of its own vector with the mean. After a second barrier, each reads
the parts of the mean from the slots of all processes. Each part is summed once, in rank order, so
that all read the same bits.

The two barriers are all-reduces of a few bytes over gloo, so a lost process is noticed as over TCP,
when its connections break.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sgp_runner.core.flat import PIECE
from sgp_runner.distributed.shared_memory import NOWHERE, SMALLEST, SharedMemory
from sgp_runner.utils.waits import LOOK_SECONDS, raise_if_interrupted

T = TypeVar("T")

LINE = 16  # numbers; parts are multiples, so that no two processes write to one line of a cache


class SharedMean:
    """Collectives of this process over ``group``, whose ranks are the process ranks.

    A thread executes them one after the other, in the order in which they were started. Anything
    else that uses ``group`` must be started here too, so that all processes make the same calls in
    the same order.
    """

    def __init__(self, memory: SharedMemory, group: dist.ProcessGroup) -> None:
        self.memory, self.group = memory, group
        self.rank, self.size = group.rank(), group.size()
        self.queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self.thread: Thread | None = None

    def start(self, collective: Callable[[], T]) -> Future[T]:
        """Execute a collective on the thread, after those already started."""
        if self.thread is None:
            self.thread = Thread(target=make_all, args=(self.queue,), daemon=True)
            self.thread.start()
        future: Future[T] = Future()
        self.queue.put((collective, future))
        return future

    def call(self, collective: Callable[[], T]) -> T:
        """Return the result of a collective, executed after those already started."""
        future = self.start(collective)
        while True:
            try:
                return future.result(LOOK_SECONDS)
            except TimeoutError:
                raise_if_interrupted()

    def close(self) -> None:
        """End the thread after it has executed the started collectives."""
        self.queue.put(None)

    def mean(self, parts: list[Tensor]) -> list[Tensor]:
        """Return the mean over all processes of the vector in ``parts``, in new parts.

        The new parts are read-only and occupy the slots of all processes until they are freed. This
        is a collective, for `start` or `call`.
        """
        length, dtype = sum(part.numel() for part in parts), parts[0].dtype
        if length * dtype.itemsize < SMALLEST:
            return [self.mean_over_tcp(torch.cat(parts))]
        slot = self.memory.empty(length, dtype)
        where = torch.zeros(self.size, dtype=torch.int64)
        where[self.rank] = NOWHERE
        if slot is not None:
            torch.cat(parts, out=slot)
            where[self.rank] = min(self.memory.share(slot, other) for other in self.others)
        dist.all_reduce(where, group=self.group)
        if slot is None or NOWHERE in where:  # no memory is left on some process
            if slot is not None:
                self.memory.take_back(slot)
            return [self.mean_over_tcp(torch.cat(parts))]
        vectors = [
            slot if rank == self.rank else self.memory.message(rank, offset, length, dtype)
            for rank, offset in enumerate(where.tolist())
        ]
        ends = self.ends(length)
        self.add_up(vectors, slot, ends[self.rank], ends[self.rank + 1])
        dist.all_reduce(torch.zeros(1), group=self.group)
        means = (vectors[rank][ends[rank] : ends[rank + 1]] for rank in range(self.size))
        return [mean for mean in means if mean.numel()]

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def ends(self, length: int) -> list[int]:
        """Return the start of the first part of a vector [length] and the ends of all parts."""
        step = -(-length // (LINE * self.size)) * LINE
        return [min(rank * step, length) for rank in range(self.size + 1)]

    def add_up(self, vectors: list[Tensor], slot: Tensor, begin: int, end: int) -> None:
        """Write the mean of ``vectors`` from ``begin`` to ``end`` into ``slot``, one of them."""
        total = slot.new_empty(min(PIECE, end - begin))
        for start in range(begin, end, PIECE):
            where = slice(start, min(start + PIECE, end))
            piece = total[: where.stop - start]
            torch.add(vectors[0][where], vectors[1][where], out=piece)
            for vector in vectors[2:]:
                piece += vector[where]
            torch.div(piece, self.size, out=slot[where])

    def mean_over_tcp(self, vector: Tensor) -> Tensor:
        """Average ``vector`` in place. This is a collective, for `start` or `call`."""
        dist.all_reduce(vector, group=self.group)
        return vector.div_(self.size)


def make_all(queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
    """Execute the collectives in a queue until None."""
    while (item := queue.get()) is not None:
        collective, future = item
        try:
            future.set_result(collective())
        except Exception as error:
            future.set_exception(error)
        del item, collective, future  # or the thread would keep them until the next one
