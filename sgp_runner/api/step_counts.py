"""Comparison of the numbers of steps of all ranks, and detection of missing ranks."""

from __future__ import annotations

import math
import time
from threading import Event, Thread

from torch.distributed.distributed_c10d import Store

from sgp_runner.api.roll_call import RollCall
from sgp_runner.core.scheduler import RealClock
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.waits import LOOK_SECONDS, interrupt, raise_if_interrupted, waiting_for

POLL_SECONDS = 0.05
FOLLOW_SECONDS = 0.002  # between the looks of a rank that joins, for which the others wait
JOIN_SECONDS = 3.0  # for the thread to end
FINISHED = "a rank has finished"


class StepCounts:
    """A comparison of this rank's steps with the steps of ranks that have finished.

    A thread also calls the roll, from the construction until `close`.

    store: shared by all ranks
    joins: whether ranks that have finished take part in the steps of the others
    limit: how long a rank may wait for others (seconds)
    clock: set once it exists; an error of the thread is raised in a step that waits for messages
    """

    clock: RealClock | None = None

    def __init__(
        self, store: Store, rank: int, size: int, joins: bool = False, limit: float = math.inf
    ) -> None:
        self.store, self.rank, self.joins = store, rank, joins
        self.others = [other for other in range(size) if other != rank]
        self.steps = 0
        self.over = Event()
        self.roll_call = RollCall(store, rank, size, limit)
        interrupt(None)  # of an earlier loop
        self.watcher = Thread(target=self.watch, daemon=True)
        if self.others:
            self.watcher.start()

    def meet(self) -> None:
        """Wait until all ranks have arrived here."""
        self.store.set(f"{self.rank} is here", "")
        for rank in self.others:
            self.wait_for(f"{rank} is here", "to make their Averager")

    def step(self) -> None:
        """Count a step. Raises an error that the thread found while this rank was not waiting."""
        raise_if_interrupted()
        self.steps += 1
        if self.joins:
            self.store.set(f"begun by {self.rank}", str(self.steps))

    def watch(self) -> None:
        """Interrupt a wait that would last forever, once a rank has finished or does not arrive."""
        while not self.over.wait(LOOK_SECONDS):
            try:
                error = self.unequal_now() or self.roll_call.outcome(self.steps)
            except RuntimeError:  # the store is lost with its rank, which breaks connections too
                return
            if error is not None:
                interrupt(error)
                if self.clock is not None:
                    self.clock.post_error(error)
                return

    def unequal_now(self) -> ConfigError | None:
        """Return an error if another rank has finished with fewer steps, else None."""
        # One request, however many ranks there are.
        if self.joins or not self.store.check([FINISHED]):
            return None
        finished = ((rank, self.of(rank)) for rank in self.others)
        fewer = [(rank, n) for rank, n in finished if n is not None and n < self.steps]
        if fewer:
            self.publish()
        return self.unequal(*fewer[0]) if fewer else None

    def behind(self) -> bool:
        """Return whether another rank has started a step in which this joined rank must take part.

        Waits until one has, or all ranks have finished.
        """
        if not self.joins:
            return False
        self.store.set(f"done by {self.rank}", "")
        done = [f"done by {rank}" for rank in self.others]
        begun = [f"begun by {rank}" for rank in self.others]
        with waiting_for("waits for ranks with more steps"):
            while True:
                finished = all(self.store.check([key]) for key in done)
                counts = [int(self.store.get(key)) for key in begun if self.store.check([key])]
                if max(counts, default=0) > self.steps or finished:
                    return max(counts, default=0) > self.steps
                raise_if_interrupted()
                time.sleep(FOLLOW_SECONDS)

    def wait_for(self, key: str, what: str) -> None:
        with waiting_for(f"waits for all ranks {what}"):
            while not self.store.check([key]):
                raise_if_interrupted()
                time.sleep(POLL_SECONDS)

    def publish(self) -> None:
        self.store.set(f"steps of {self.rank}", str(self.steps))
        self.store.set(FINISHED, "")

    def of(self, rank: int) -> int | None:
        """Return the number of steps of a rank; None if it has not finished."""
        key = f"steps of {rank}"
        return int(self.store.get(key)) if self.store.check([key]) else None

    def compare(self) -> None:
        """Wait until all ranks have finished. Raises ConfigError if their steps differ."""
        self.publish()
        for rank in self.others:
            self.wait_for(f"steps of {rank}", "to finish")
            if (steps := self.of(rank)) is not None and steps != self.steps:
                raise self.unequal(rank, steps)

    def close(self) -> None:
        """End the thread, which would crash at program exit if inside a call to the store."""
        self.over.set()
        if self.others:
            self.watcher.join(JOIN_SECONDS)

    def unequal(self, rank: int, steps: int) -> ConfigError:
        both = sorted([(self.rank, self.steps), (rank, steps)])
        counts = " and ".join(f"rank {who} took {count}" for who, count in both)
        return ConfigError(
            "Averager", f"{counts} steps: all ranks must call step() the same number of times."
        )
