"""What this process waits for from others, and since when. Every such wait has a name, so that a run that stands still can say why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

Name = str | Callable[[], str]  # put into words only when they are needed

_numbers = count()
_waits: dict[int, tuple[Name, float]] = {}  # of all threads, oldest first


@contextmanager
def waiting_for(what: Name) -> Iterator[None]:
    number = next(_numbers)
    _waits[number] = what, time.monotonic()
    try:
        yield
    finally:
        del _waits[number]


def longest_wait() -> float:
    """Seconds; 0 if nothing is waited for."""
    return max((time.monotonic() - since for _, since in list(_waits.values())), default=0.0)


def waits_in_words() -> str:
    now = time.monotonic()
    words = [f"{what if isinstance(what, str) else what()} for {now - since:.1f} s" for what, since in list(_waits.values())]
    return "; ".join(words) or "waits for nobody"
