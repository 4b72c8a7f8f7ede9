"""Image files, decoded ahead of time by other processes.

The images of a batch are a function of worker and step, so the next batches are known, and a
resumed run needs no saved state. The random numbers of an image depend only on a seed and the
image's index, so results do not depend on the number of decoding processes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from sgp_runner.data.dataset import Batch, Split
from sgp_runner.utils.descriptors import allow_many
from sgp_runner.utils.errors import DataError
from sgp_runner.utils.fork_server import start_fork_server
from sgp_runner.utils.seeding import seeds_of

P = ParamSpec("P")
T = TypeVar("T")


class Decoders:
    """A pool of ``count`` decoding processes, started on first use.

    If the count is 0, the caller decodes in its own process.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool: ProcessPoolExecutor | None = None

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self.pool is None:
            self.pool = start_processes(self.count)
        try:
            return self.pool.submit(function, *args, **kwargs)
        except BrokenProcessPool:
            raise self.died() from None

    def result(self, future: Future[T]) -> T:
        try:
            return future.result()
        except BrokenProcessPool:
            raise self.died() from None

    def died(self) -> DataError:
        """Kill the other processes, which ignore the pool's shutdown, and return an error."""
        for process in multiprocessing.active_children():
            process.kill()
        return DataError(
            "a decoding process has died, perhaps for lack of memory; "
            "try fewer of them (data.workers)."
        )

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None


def start_processes(count: int) -> ProcessPoolExecutor:
    """Start decoders from a fresh process that has imported their modules.

    The decoders therefore inherit no threads, locks or signal handlers.
    """
    from sgp_runner.data.decoding import start_process

    allow_many()  # an image batch in shared memory is an open file
    context = start_fork_server([start_process.__module__])
    return ProcessPoolExecutor(count, context, start_process)


@dataclass(frozen=True)
class ImageFiles(Split):
    """Labelled images in files.

    augment: whether to crop and mirror images at random instead of cropping the centre
    """

    files: Sequence[str]
    labels: Tensor  # int64 [N]
    size: int  # height and width of the output in pixels
    augment: bool
    decoders: Decoders
    # Batches that are being decoded.
    waiting: dict[tuple[int, bytes], list[Future[Tensor]]] = field(default_factory=dict)

    @property
    def ahead(self) -> int:
        return 2 if self.decoders.count else 0

    @property
    def draws_from_torch(self) -> bool:
        return not self.decoders.count

    def __len__(self) -> int:
        return len(self.files)

    def prepare(self, indices: Tensor, seed: int = 0) -> None:
        """Start decoding a batch on all decoders; batches finish in the order of calls."""
        from sgp_runner.data.decoding import decode

        key = (seed, indices.numpy().tobytes())
        if self.decoders.count and key not in self.waiting:
            parts = indices.chunk(self.decoders.count)
            self.waiting[key] = [
                self.decoders.submit(decode, *self.order(part, seed)) for part in parts
            ]

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        from sgp_runner.data.decoding import decode

        if not self.decoders.count:
            return (decode(*self.order(indices, seed)),), self.labels[indices]
        self.prepare(indices, seed)
        parts = self.waiting.pop((seed, indices.numpy().tobytes()))
        return (torch.cat([self.decoders.result(part) for part in parts]),), self.labels[indices]

    def order(self, indices: Tensor, seed: int) -> tuple[list[str], int, list[int] | None]:
        """Return the arguments of ``decode``."""
        return (
            [self.files[i] for i in indices.tolist()],
            self.size,
            seeds_of(seed, indices).tolist() if self.augment else None,
        )

    def close(self) -> None:
        self.waiting.clear()
        self.decoders.close()
