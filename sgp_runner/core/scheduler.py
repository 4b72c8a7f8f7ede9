"""Coroutines and the two clocks that drive them.

A coroutine pauses only at ``await``, and only on a `Future`: one event that has not happened yet.
The `Scheduler` runs all ready coroutines; when none is ready, it asks its clock for the next event.
`VirtualClock` pops a heap of events, so simulated time costs nothing; `RealClock` blocks until a
thread reports that a message has arrived or a gradient is done. Simulated and real runs differ in
nothing else, and with a virtual clock the order of events depends only on the program.

On some networks, coroutines must run in the same order on all ranks, no matter when messages
arrive. A scheduler that is ``in_order`` wakes coroutines in the order of their requests.
"""

from __future__ import annotations

import heapq
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from threading import Timer
from typing import Any, Generic, Protocol, TypeVar

from sgp_runner.core.wait_meter import WaitMeter
from sgp_runner.utils.waits import waiting_for

T = TypeVar("T")


class Future(Generic[T]):
    """An event that will happen once; one coroutine at a time may await its value.

    what: description for a deadlock report, formatted only when needed.
    finish: maps the value when it is awaited.
    held: whether `Scheduler` delays it to wake coroutines in order.
    """

    __slots__ = ("done", "finish", "held", "task", "value", "what")

    def __init__(self, what: tuple[Any, ...] = (), finish: Callable[[T], T] | None = None) -> None:
        self.what, self.finish = what, finish
        self.done = self.held = False
        self.value: T
        self.task: Task | None = None

    def __await__(self) -> Generator[Future[T], None, T]:
        if self.held or not self.done:
            yield self
        return self.value if self.finish is None else self.result()

    def result(self) -> T:
        """Return the value of a future that is done; ``finish`` maps it once."""
        if self.finish is not None:
            self.value, self.finish = self.finish(self.value), None
        return self.value


def resolved(value: T) -> Future[T]:
    """Return a future that is already done."""
    future: Future[T] = Future()
    future.value, future.done = value, True
    return future


class Task:
    """A running coroutine; ``finished`` resolves with its result.

    explain: maps an error in the coroutine to the error to raise
    """

    __slots__ = ("coroutine", "explain", "finished", "name", "waiting")

    def __init__(
        self,
        coroutine: Coroutine[Future[Any], None, Any],
        name: str,
        explain: Callable[[BaseException], BaseException],
    ) -> None:
        self.coroutine, self.name, self.explain = coroutine, name, explain
        self.waiting: Future[Any] | None = None
        self.finished: Future[Any] = Future(("finish", name))


class Clock(Protocol):
    """A source of events for when no coroutine is ready."""

    @property
    def now(self) -> float: ...  # seconds since the run started
    def advance(self) -> bool: ...  # run the next event; False if none can follow


class VirtualClock:
    """Simulated time: a heap of events, each of which calls one of the ``handlers`` by name.

    Events of equal time happen in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[..., None]] = {"call": call}
        self.now = 0.0
        self.events: list[tuple[float, int, str, tuple[Any, ...]]] = []
        self.order = self.first = 0
        self.never = 0  # events scheduled at infinity

    def at(self, seconds: float, event: str, *arguments: Any) -> None:
        """Schedule ``event`` at time ``seconds``, now or later; infinity means never."""
        if seconds == math.inf:
            self.never += 1
            return
        heapq.heappush(self.events, (seconds, self.order, event, arguments))
        self.order += 1

    def at_first(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call before all other events at that time; checkpoints do not contain it."""
        heapq.heappush(self.events, (seconds, -1 - self.first, "call", (function, *arguments)))
        self.first += 1

    def begin(self, now: float) -> None:
        """Start at ``now`` seconds; events of earlier times then happen immediately."""
        self.now = now
        self.events.sort()
        self.events[:] = [(max(event[0], now), *event[1:]) for event in self.events]

    def advance(self) -> bool:
        if not self.events:
            return False
        self.now, _, event, arguments = heapq.heappop(self.events)
        self.handlers[event](*arguments)
        return True


def call(function: Callable[..., None], *arguments: Any) -> None:
    """Run an event that checkpoints cannot contain."""
    function(*arguments)


class RealClock:
    """Wall-clock time: other threads `post` callbacks, which run on the scheduler's thread.

    meter: measures waits for callbacks, except while a gradient is being computed (`computing`)
    """

    def __init__(self) -> None:
        self.meter = WaitMeter()
        self.computing = False
        self.describe: Callable[[], str] = lambda: "waits for an event"
        self.start = time.monotonic()
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.poll: Callable[[], None] | None = None
        self.poll_seconds = 0.0

    def poll_with(self, poll: Callable[[], None], seconds: float) -> None:
        """Call ``poll`` every ``seconds`` while the scheduler waits.

        On networks without a communication thread, ``poll`` transfers messages and posts callbacks.
        """
        self.poll, self.poll_seconds = poll, seconds

    def computed(self, seconds: float) -> None:
        """Handle the completion of a gradient that took ``seconds``."""

    def sends(self, dst: int, tag: int, num_bytes: int) -> None:
        """Handle a message that this rank sends."""

    def delivers(self, src: int, tag: int) -> None:
        """Handle a message that reaches the mailbox."""

    def ends(self, collective: int) -> None:
        """Handle the completion of a collective."""

    def wakes(self, number: int) -> None:
        """Handle the end of the sleep ``number`` of this rank."""

    @property
    def now(self) -> float:
        return time.monotonic() - self.start

    def post(self, callback: Callable[[], None]) -> None:
        self.posted.put(callback)

    def post_after(self, seconds: float, number: int, callback: Callable[[], None]) -> None:
        """Post ``callback`` after ``seconds``, at the end of the sleep ``number``."""
        timer = Timer(seconds, self.post, [callback])
        timer.daemon = True
        timer.start()

    def post_error(self, error: Exception) -> None:
        """Raise ``error`` on the scheduler's thread."""

        def fail() -> None:
            raise error

        self.posted.put(fail)

    def exclude(self, seconds: float) -> None:
        """Exclude the last ``seconds`` from the measured time."""
        self.start += seconds

    def advance(self) -> bool:
        began = time.monotonic()
        with waiting_for(self.describe):
            while self.poll is not None:
                self.poll()
                if not self.posted.empty():
                    break
                # Not `get` with a timeout: in CPython it can become negative and wait for ever.
                time.sleep(self.poll_seconds)
            callback = self.posted.get()
        if not self.computing:
            self.meter.add(time.monotonic() - began)
        callback()
        return True

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run posted callbacks, but no coroutine, until ``done`` returns True."""
        while not done():
            self.advance()

    def catch_up(self) -> None:
        """Run posted callbacks without waiting."""
        if self.poll is not None:
            self.poll()
        while not self.posted.empty():
            self.posted.get()()


class Deadlock(RuntimeError):
    """Raised if all coroutines wait and no event is pending; the message lists their events."""


class Scheduler:
    """A scheduler that runs coroutines until all have finished.

    in_order: coroutines that await a `future` wake one at a time, in the order of their requests.
    """

    def __init__(self, clock: Clock, in_order: bool = False) -> None:
        self.clock = clock
        self.in_order = in_order
        self.ready: deque[Task] = deque()
        self.tasks: dict[Task, None] = {}  # unfinished, in the order of their start
        self.held: deque[Future[Any]] = deque()  # in the order of the requests

    def spawn(
        self,
        coroutine: Coroutine[Future[Any], None, T],
        name: str,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> Future[T]:
        """Start a coroutine; ``explain`` maps its errors. Await the result to join it."""
        task = Task(coroutine, name, explain)
        self.tasks[task] = None
        self.ready.append(task)
        return task.finished

    def future(self, what: tuple[Any, ...], finish: Callable[[T], T] | None = None) -> Future[T]:
        """Return the future of an external event, whose timing depends on the network."""
        future = Future(what, finish)
        if self.in_order:
            future.held = True
            self.held.append(future)
        return future

    def resolve(self, future: Future[T], value: T) -> None:
        """Resolve ``future`` and make its coroutine ready, now or in its turn."""
        future.value = value
        future.done = True
        if not future.held and future.task is not None:
            future.task.waiting = None  # so that the value can be freed after use
            self.ready.append(future.task)

    def wake_next(self) -> bool:
        """Wake the coroutine with the oldest request; return False if its event is pending."""
        if not self.held[0].done:
            return False
        future = self.held.popleft()
        future.held = False
        self.resolve(future, future.value)
        return True

    def run(self) -> None:
        """Run until no coroutine is left.

        Raises the errors of coroutines, and `Deadlock` if all wait and no event is pending.
        """
        advance, ready, tasks, held = self.clock.advance, self.ready, self.tasks, self.held
        while True:
            if ready:
                self.settle()
            if not tasks:
                return
            if held and self.wake_next():
                continue
            if not advance():
                raise Deadlock(self.report())

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run until all coroutines wait and ``done``, or until none is left. Raises like `run`."""
        while True:
            self.settle()
            if done() or not self.tasks:
                return
            if self.held and self.wake_next():
                continue
            if not self.clock.advance():
                raise Deadlock(self.report())

    def settle(self) -> None:
        """Run ready coroutines until all wait."""
        ready = self.ready
        while ready:
            task = ready.popleft()
            try:
                future = task.coroutine.send(None)
            except StopIteration as stop:
                del self.tasks[task]
                self.resolve(task.finished, stop.value)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # sys.exit() in an algorithm is an error too
                explained = task.explain(error)
                if explained is error:
                    raise
                raise explained from error
            else:
                future.task = task
                task.waiting = future

    def report(self) -> str:
        lines = [f"  {task.name} waits for {describe(task.waiting)}" for task in self.tasks]
        return "deadlock: every worker is blocked.\n" + "\n".join(lines)

    def waits(self) -> str:
        """Return what all coroutines wait for, on one line."""
        return ", ".join(f"waits for {describe(task.waiting)}" for task in list(self.tasks))

    def close(self) -> None:
        """Close the coroutines that will not run again after an error."""
        for task in self.tasks:
            task.coroutine.close()
            task.waiting = None  # or the two would keep each other
        self.tasks.clear()


def describe(future: Future[Any] | None) -> str:
    """Return a description of a future: its event and the rank it comes from."""
    if future is None:
        return "its turn"
    match future.what:
        case ("message", source, tag):
            return f"a message from rank {source}" + (f" (tag {tag})" if tag else "")
        case ("any message", tag):
            return "a message from any rank" + (f" (tag {tag})" if tag else "")
        case (kind, number, missing) if missing is not None:
            return f"{kind} {number}, which ranks {sorted(missing)} have not joined"
        case (kind, number, None):
            return f"{kind} {number}"
        case ("finish", name):
            return f"{name} to finish"
        case what:
            return " ".join(str(word) for word in what)
