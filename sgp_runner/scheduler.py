"""Coroutines and the two clocks that drive them.

A coroutine stops only at ``await``, and only on a `Wait`: one thing that has not happened yet. The `Scheduler` runs whatever is
ready; when nothing is, it asks its clock for the next event. `VirtualClock` pops a heap of (time, order, callback), so simulated time
costs nothing; `RealClock` blocks until a thread reports that a message came in or a gradient is done. Nothing else differs between a
simulated and a real run, and with a virtual clock the order of events depends only on the program.
"""

from __future__ import annotations

import heapq
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from sgp_runner.waits import waiting_for

T = TypeVar("T")


class Wait(Generic[T]):
    """Something that will happen once. Await it for its value; one coroutine at a time."""

    __slots__ = ("done", "task", "value", "what")

    def __init__(self, what: tuple[Any, ...] = ()) -> None:
        self.what = what  # a few words and numbers for a deadlock report; put together only when it is needed
        self.done = False
        self.value: T
        self.task: Task | None = None

    def __await__(self) -> Generator[Wait[T], None, T]:
        if not self.done:
            yield self
        return self.value


def resolved(value: T) -> Wait[T]:
    """It has happened already."""
    wait: Wait[T] = Wait()
    wait.value = value
    wait.done = True
    return wait


class Task:
    """A running coroutine. ``finished`` is resolved with its result."""

    __slots__ = ("coroutine", "finished", "name", "waiting")

    def __init__(self, coroutine: Coroutine[Wait[Any], None, Any], name: str) -> None:
        self.coroutine = coroutine
        self.name = name
        self.waiting: Wait[Any] | None = None
        self.finished: Wait[Any] = Wait(("finish", name))


class Clock(Protocol):
    """Where events come from once no coroutine can go on."""

    @property
    def now(self) -> float: ...  # seconds since the run started
    def advance(self) -> bool: ...  # run the next event; False when there can be none


class VirtualClock:
    """Simulated time: a heap of callbacks. Equal times run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.order = 0

    def at(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back at the time ``seconds``, which is not before now; never, if that is infinite."""
        if seconds == math.inf:
            return
        heapq.heappush(self.events, (seconds, self.order, callback, arguments))
        self.order += 1

    def advance(self) -> bool:
        if not self.events:
            return False
        self.now, _, callback, arguments = heapq.heappop(self.events)
        callback(*arguments)
        return True


class RealClock:
    """Wall-clock time: other threads `post` callbacks, which run on the scheduler's thread.

    poll: moves messages where no thread does, and posts; called every ``poll_seconds`` by a scheduler that waits.
    """

    def __init__(self) -> None:
        self.describe: Callable[[], str] = lambda: "waits for an event"  # who waits for whom
        self.start = time.monotonic()
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.poll: Callable[[], None] | None = None
        self.poll_seconds = 0.0

    @property
    def now(self) -> float:
        return time.monotonic() - self.start

    def post(self, callback: Callable[[], None]) -> None:
        self.posted.put(callback)

    def post_error(self, error: Exception) -> None:
        """Raise ``error`` on the scheduler's thread."""

        def fail() -> None:
            raise error

        self.posted.put(fail)

    def exclude(self, seconds: float) -> None:
        """Take ``seconds`` that have just passed out of the reckoning."""
        self.start += seconds

    def advance(self) -> bool:
        with waiting_for(self.describe):
            while self.poll is not None:
                self.poll()
                if not self.posted.empty():
                    break
                time.sleep(self.poll_seconds)  # `get` with a timeout can wait for ever: between two tries CPython lets it become negative
            callback = self.posted.get()
        callback()
        return True

    def run_until(self, wait: Wait[Any]) -> None:
        """Run what is posted until ``wait`` is done, and no coroutine meanwhile."""
        while not wait.done:
            self.advance()

    def catch_up(self) -> None:
        """Run what has been posted, without waiting."""
        if self.poll is not None:
            self.poll()
        while not self.posted.empty():
            self.posted.get()()


class Deadlock(RuntimeError):
    """Every coroutine waits and nothing can happen any more. The message says who waits for what."""


class Scheduler:
    """Runs coroutines until all have finished."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ready: deque[Task] = deque()
        self.tasks: dict[Task, None] = {}  # unfinished, in the order of their start

    def spawn(self, coroutine: Coroutine[Wait[Any], None, T], name: str) -> Wait[T]:
        """Start a coroutine; await the result to join it."""
        task = Task(coroutine, name)
        self.tasks[task] = None
        self.ready.append(task)
        return task.finished

    def resolve(self, wait: Wait[T], value: T) -> None:
        """It has happened: whoever waits goes on, at this same moment."""
        wait.value = value
        wait.done = True
        if wait.task is not None:
            self.ready.append(wait.task)

    def run(self) -> None:
        """Until no coroutine is left. Errors of a coroutine come out here; a `Deadlock` says who waits for whom."""
        advance = self.clock.advance
        while True:
            self.settle()
            if not self.tasks:
                return
            if not advance():
                raise Deadlock(self.report())

    def settle(self) -> None:
        """Run whatever is ready, until everybody waits."""
        ready = self.ready
        while ready:
            self.step(ready.popleft())

    def step(self, task: Task) -> None:
        """Let one coroutine run to its next wait."""
        try:
            wait = task.coroutine.send(None)
        except StopIteration as stop:
            del self.tasks[task]
            self.resolve(task.finished, stop.value)
            return
        wait.task = task
        task.waiting = wait

    def report(self) -> str:
        lines = [f"  {task.name} waits for {describe(task.waiting)}" for task in self.tasks]
        return "deadlock: nobody can go on.\n" + "\n".join(lines)

    def waits(self) -> str:
        """Who waits for whom, on one line."""
        return ", ".join(f"waits for {describe(task.waiting)}" for task in list(self.tasks))

    def close(self) -> None:
        """Drop coroutines that will not run again, after an error."""
        for task in self.tasks:
            task.coroutine.close()
        self.tasks.clear()


def describe(wait: Wait[Any] | None) -> str:
    """Words for a deadlock report: what is awaited, and from whom."""
    if wait is None:
        return "its first turn"
    match wait.what:
        case ("message", source, tag):
            return f"a message from rank {source}" + (f" (tag {tag})" if tag else "")
        case ("any message", tag):
            return "a message from anybody" + (f" (tag {tag})" if tag else "")
        case ("all_reduce", number, missing):
            return f"all-reduce {number}, which ranks {sorted(missing)} have not joined"
        case ("finish", name):
            return f"{name} to finish"
        case what:
            return " ".join(str(word) for word in what)
