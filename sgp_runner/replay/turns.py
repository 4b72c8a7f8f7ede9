"""Ranks that take turns: one thread per rank, running one at a time in deterministic order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Condition, Thread

from sgp_runner.utils.errors import Aborted


class Turns:
    """A scheduler that runs one function per rank until all have returned.

    A rank runs until it must wait; then the next rank that can continue runs. The first error of
    any rank ends all ranks.

    present: the currently running rank; -1 before the first turn
    waiting: for each unfinished rank that is not running, a function that returns whether the rank
        can continue, and the reason why it waits
    """

    def __init__(self) -> None:
        self.present = -1
        self.waiting: dict[int, tuple[Callable[[], bool], str]] = {}
        self.error: BaseException | None = None
        self.changed = Condition()

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        self.waiting = {rank: (lambda: True, "its first turn") for rank in range(len(works))}
        threads = [
            Thread(target=self.work, args=(rank, work), daemon=True)
            for rank, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        try:
            self.pass_on()
            for thread in threads:
                thread.join()
        except BaseException as error:  # a signal
            self.error = error
            self.pass_on()
            for thread in threads:
                thread.join()
        if self.error is not None:
            raise self.error

    def work(self, rank: int, work: Callable[[], None]) -> None:
        try:
            self.wait_for_turn(rank)
            work()
        except BaseException as error:
            self.error = self.error or error
        self.pass_on()

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Pause the current rank until ``ready()`` is true; other ranks run in the meantime."""
        if not ready():
            rank = self.present
            self.waiting[rank] = ready, what
            self.pass_on()
            self.wait_for_turn(rank)

    def pass_on(self) -> None:
        """Pass the turn to the next rank that can continue."""
        with self.changed:
            able = [rank for rank, (ready, _) in sorted(self.waiting.items()) if ready()]
            if self.waiting and not able and self.error is None:
                what = [f"rank {rank} waits for {it}" for rank, (_, it) in self.waiting.items()]
                self.error = RuntimeError(f"every rank is blocked: {'; '.join(what)}")
            if able:
                self.present = next((rank for rank in able if rank > self.present), able[0])
            self.changed.notify_all()

    def wait_for_turn(self, rank: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.present == rank or self.error is not None)
            del self.waiting[rank]
            if self.error is not None:
                raise Aborted("another rank failed")
