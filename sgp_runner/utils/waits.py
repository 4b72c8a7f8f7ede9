"""Waits of this process for other ranks, named so that a stalled run can report them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn, TypeVar

from sgp_runner.utils.spans import Name, span

T = TypeVar("T")

LOOK_SECONDS = 0.2

_numbers = count()
_interruptions: list[Exception] = []  # at most one
left_behind: list[Name] = []  # waits of abandoned threads; the process should end soon
_waits: dict[int, tuple[Name, float]] = {}  # of all threads, oldest first
# Waits of the device, and whether each is over.
_device_waits: dict[int, tuple[Name, float, Callable[[], bool]]] = {}


@contextmanager
def waiting_for(what: Name) -> Iterator[None]:
    number = next(_numbers)
    _waits[number] = what, time.monotonic()
    try:
        with span(what):
            yield
    finally:
        del _waits[number]


def device_waits(what: Name, over: Callable[[], bool]) -> None:
    """Add a wait of the device; unlike other waits, it blocks no thread of this process.

    over: returns whether the wait is over; any thread may call it
    """
    present()  # or they would add up
    _device_waits[next(_numbers)] = what, time.monotonic(), over


def present() -> list[tuple[Name, float]]:
    """Return the name and the start time of each current wait."""
    for number, (_, _, over) in list(_device_waits.items()):
        if over():
            _device_waits.pop(number, None)
    return [*_waits.values(), *(wait[:2] for wait in list(_device_waits.values()))]


def longest_wait() -> float:
    """Return the seconds that the longest current wait has lasted; 0 if there is none."""
    return max((time.monotonic() - since for _, since in present()), default=0.0)


def stall_report() -> str:
    now = time.monotonic()
    parts = [
        f"{what if isinstance(what, str) else what()} for {now - since:.1f} s"
        for what, since in present()
    ]
    return "; ".join(parts) or "waits for no rank"


def interrupt(error: Exception | None) -> None:
    """Let current and later calls of `run_abandonable` raise ``error``; None resets this."""
    _interruptions[:] = [] if error is None else [error]


def interruption() -> Exception | None:
    return _interruptions[0] if _interruptions else None


def raise_if_interrupted() -> None:
    """Raise the error of `interrupt`, if any; loops that wait by polling call this."""
    if (error := interruption()) is not None:
        raise error


def run_abandonable(call: Callable[[], T], what: Name) -> T:
    """Return the result of a call that may never return and cannot be cancelled.

    The call runs on a thread. After `interrupt` the thread is abandoned.
    """
    results: SimpleQueue[Callable[[], T]] = SimpleQueue()

    def run() -> None:
        try:
            value = call()
            results.put(lambda: value)
        except Exception as error:
            results.put(partial(fail, error))

    with waiting_for(what):
        Thread(target=run, daemon=True).start()
        while True:
            try:
                result = results.get(timeout=LOOK_SECONDS)
            except Empty:
                if _interruptions:
                    left_behind.append(what)
                    raise _interruptions[0] from None
            else:
                return result()


def fail(error: Exception) -> NoReturn:
    raise error
