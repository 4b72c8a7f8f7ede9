"""Ranks that take turns: threads of which one runs at a time, in a deterministic order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Semaphore, Thread

from sgp_runner.utils.errors import Aborted


class Stuck(RuntimeError):
    """Every rank waits for another one.

    who: for each rank, what it waits for
    """

    def __init__(self, who: dict[int, str]) -> None:
        super().__init__(
            "every rank is blocked: "
            + "; ".join(f"rank {rank} waits for {what}" for rank, what in who.items())
        )


class Turns:
    """Runs one function per rank until all have returned.

    A rank runs until it must wait. The first error of any rank ends all of them.
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
                    turn.resume()
                    if turn.error is not None:
                        raise turn.error
                    if turn.done:
                        del turns[rank]
        finally:
            for turn in turns.values():
                turn.end()

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Pause the calling rank until it is ``ready``, and run others meanwhile."""
        if not ready():
            assert self.present is not None
            self.present.pause(ready, what)


class Turn:
    """The thread of one rank."""

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

    def resume(self) -> None:
        self.mine.release()
        self.others.acquire()

    def pause(self, ready: Callable[[], bool], what: str) -> None:
        self.ready, self.what = ready, what
        self.others.release()
        self.mine.acquire()
        if self.ended:
            raise Aborted("another rank failed")

    def end(self) -> None:
        """End the thread if it waits."""
        if not self.done:
            self.ended = True
            self.resume()
