"""Ranks that take turns: each a thread with a stack of its own, of which one runs at a time, in an
order that is always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Semaphore, Thread

from sgp_runner.utils.errors import Aborted


class Stuck(RuntimeError):
    """Every rank waits for something that none of the others can bring about. ``who``: ranks, and
    what they wait for.
    """

    def __init__(self, who: dict[int, str]) -> None:
        super().__init__(
            "nobody can go on: "
            + "; ".join(f"rank {rank} waits for {what}" for rank, what in who.items())
        )


class Turns:
    """Runs a piece of work per rank until all are done. A rank runs until it must wait; the first
    error of any ends all.
    """

    def __init__(self) -> None:
        self.present: Turn | None = None

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        turns = {rank: Turn(work) for rank, work in enumerate(works)}
        try:
            while turns:
                able = {rank: turn for rank, turn in turns.items() if turn.ready()}
                if not able:
                    raise Stuck({rank: turn.what for rank, turn in turns.items()})
                for rank, turn in able.items():
                    self.present = turn
                    turn.go_on()
                    if turn.error is not None:
                        raise turn.error
                    if turn.done:
                        del turns[rank]
        finally:
            for turn in turns.values():
                turn.end()

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """To be called by the rank that runs: it goes on when it is ``ready``, and others
        meanwhile.
        """
        if not ready():
            assert self.present is not None
            self.present.pause(ready, what)


class Turn:
    """One rank."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.ready: Callable[[], bool] = lambda: True
        self.what = "its first turn"
        self.error: BaseException | None = None
        self.done = self.ended = False
        self.mine, self.others = Semaphore(0), Semaphore(0)
        self.thread = Thread(target=self.body, daemon=True)
        self.thread.start()

    def body(self) -> None:
        self.mine.acquire()
        try:
            if not self.ended:
                self.work()
        except BaseException as error:
            self.error = error
        self.done = True
        self.others.release()

    def go_on(self) -> None:
        self.mine.release()
        self.others.acquire()

    def pause(self, ready: Callable[[], bool], what: str) -> None:
        self.ready, self.what = ready, what
        self.others.release()
        self.mine.acquire()
        if self.ended:
            raise Aborted("another rank failed")

    def end(self) -> None:
        """Let the thread run out, if it waits."""
        if not self.done:
            self.ended = True
            self.go_on()
