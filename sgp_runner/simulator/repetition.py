"""Workers' journals, which `sgp_runner.simulator.snapshot` replays when a run is resumed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sgp_runner.cluster.coding_times import Coding
from sgp_runner.core.comm import copied
from sgp_runner.core.scheduler import Future, VirtualClock
from sgp_runner.core.state import futures_in
from sgp_runner.core.worker import Worker
from sgp_runner.simulator.compute import Contribution
from sgp_runner.simulator.engine import Gradient

# One entry of a journal: ("deliver", src, tag, message) | ("gradient", step) |
# ("collective", number, value) | ("sleep", number) | ("time", seconds), of the next entry.
Entry = tuple[Any, ...]


class Journals:
    """The events of each worker since the start of its step, by rank, for snapshots."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.entries: dict[int, list[Entry]] = {}

    def begin(self, rank: int) -> None:
        """Start the journal of a worker that begins a step."""
        self.entries[rank] = [("time", self.clock.now)]

    def note(self, rank: int, *entry: Any) -> None:
        """Append an entry to a worker's journal, if there is one."""
        if (journal := self.entries.get(rank)) is not None:
            journal.extend([("time", self.clock.now), entry])


class Repetition:
    """A replacement for the machines that ignores requests while workers repeat a step.

    futures: futures of collectives, by rank and number
    """

    def __init__(self) -> None:
        self.futures: dict[tuple[int, int], Future[Any]] = {}

    def start_gradient(self, gradient: Gradient, contribution: Contribution | None) -> None:
        """Compute nothing."""

    def abandon(self, gradient: Gradient) -> None:
        """Free nothing."""

    def sleep(self, rank: int, number: int, seconds: float) -> None:
        """Schedule nothing."""

    def code(self, rank: int, number: int, what: Coding, seconds: float) -> None:
        """Take no time."""

    def send(self, src: int, dst: int, tag: int, message: Tensor) -> int:
        return 0

    def collective_future(self, number: int, rank: int, gathers: bool) -> Future[Any]:
        future: Future[Any] = Future(("collective", number, None))
        self.futures[rank, number] = future
        return future

    def contribute(self, number: int, rank: int, tensor: Tensor) -> None:
        """Contribute nothing."""

    def expect(self, worker: Worker) -> None:
        """Register the pending collectives of a worker that is restored to the start of a step."""
        for future in futures_in(worker.state):
            if not future.done:
                future.finish = copied
                self.futures[worker.rank, future.what[1]] = future
