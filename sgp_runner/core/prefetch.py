"""Batches that a thread loads and copies to a GPU while the GPU processes earlier batches."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from sgp_runner.data.dataset import Batch
from sgp_runner.utils.spans import span

if TYPE_CHECKING:
    import torch

Load: TypeAlias = Callable[[int, int], Batch]  # of a worker and its step


class Prefetcher:
    """A loader of a worker's batches, one step ahead, on its own thread and CUDA stream.

    The host never waits for the device. Up to two batches are on the device: the current and the
    next. An error in the thread is raised by the call of `batch` that requests the failed batch.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.thread = ThreadPoolExecutor(1, "loads batches")  # starts with the first batch
        self.stream: torch.cuda.Stream | None = None
        self.pending: dict[
            tuple[Load, int, int], Future[tuple[Batch, torch.cuda.Event]]
        ] = {}  # at most one

    def batch(self, load: Load, rank: int, step: int) -> Batch:
        """Return ``load(rank, step)`` and start loading the batch of the next step."""
        import torch

        present, following = (load, rank, step), (load, rank, step + 1)
        loading = self.pending.pop(present, None) or self.thread.submit(self.loaded, *present)
        if following not in self.pending:
            self.pending = {following: self.thread.submit(self.loaded, *following)}
        with span(f"batch {step}"):
            batch, copied = loading.result()
        here = torch.cuda.current_stream(self.device)
        here.wait_event(copied)
        inputs, targets = batch
        for t in (*inputs, targets):
            t.record_stream(here)
        return batch

    def loaded(self, load: Load, rank: int, step: int) -> tuple[Batch, torch.cuda.Event]:
        """Return a batch and the event recorded after its copy to the device."""
        import torch

        if self.stream is None:
            self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            return load(rank, step), self.stream.record_event()

    def close(self) -> None:
        """Stop the thread after its current batch."""
        self.thread.shutdown(cancel_futures=True)
        self.pending.clear()
