"""The numbers of steps of all ranks of a training loop, which must be equal at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread

from torch.distributed.distributed_c10d import Store

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.waits import LOOK_SECONDS, raise_if_interrupted, waiting_for

POLL_SECONDS = 0.05
JOIN_SECONDS = 0.002  # of a rank for which the others wait
FINISHED = "a rank has finished"


class StepCounts:
    """Compares the steps of this rank with those of ranks that have finished.

    store: shared by all ranks
    fail: raises an error in a step that waits for messages
    joins: whether ranks that have finished follow the steps of the others
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        fail: Callable[[Exception], None],
        joins: bool = False,
    ) -> None:
        self.store, self.rank, self.fail, self.joins = store, rank, fail, joins
        self.others = [other for other in range(size) if other != rank]
        self.steps = 0
        self.over = Event()
        self.watcher: Thread | None = None

    def step(self) -> None:
        """Count a step. From the first one on, a thread looks for ranks that have finished."""
        self.steps += 1
        if self.joins:
            self.store.set(f"begun by {self.rank}", str(self.steps))
        elif self.steps == 1 and self.others:
            self.watcher = Thread(target=self.watch, daemon=True)
            self.watcher.start()

    def watch(self) -> None:
        """Fail, instead of waiting for ever for a rank that has finished after fewer steps."""
        while not self.over.wait(LOOK_SECONDS):
            # One request, however many ranks there are.
            for rank in self.others if self.store.check([FINISHED]) else ():
                if (steps := self.of(rank)) is not None and steps < self.steps:
                    self.publish()
                    self.fail(self.unequal(rank, steps))
                    return

    def behind(self) -> bool:
        """Return whether another rank has begun a step that this one, which joins, must follow.

        Wait until one has, or all ranks have finished.
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
                time.sleep(JOIN_SECONDS)

    def publish(self) -> None:
        self.over.set()
        self.store.set(f"steps of {self.rank}", str(self.steps))
        self.store.set(FINISHED, "")

    def of(self, rank: int) -> int | None:
        """Return the steps of a rank; None if it has not finished."""
        key = f"steps of {rank}"
        return int(self.store.get(key)) if self.store.check([key]) else None

    def compare(self) -> None:
        """Wait until all ranks have finished. Raises ConfigError if their steps differ."""
        self.publish()
        if self.watcher is not None:
            self.watcher.join()
            self.watcher = None
        with waiting_for("waits for all ranks to finish"):
            for rank in self.others:
                while (steps := self.of(rank)) is None:
                    raise_if_interrupted()
                    time.sleep(POLL_SECONDS)
                if steps != self.steps:
                    raise self.unequal(rank, steps)

    def unequal(self, rank: int, steps: int) -> ConfigError:
        both = sorted([(self.rank, self.steps), (rank, steps)])
        counts = " and ".join(f"rank {who} took {count}" for who, count in both)
        return ConfigError(
            "Averager", f"{counts} steps: all ranks must call step() the same number of times."
        )
