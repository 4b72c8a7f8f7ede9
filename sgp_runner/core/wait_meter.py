"""Measurement of the time that a rank waits for messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

Moment: TypeAlias = "float | torch.cuda.Event"


class WaitMeter:
    """A sum of the host's waits, and of a GPU stream's waits between two of its events.

    The host never waits for the events; they count once the device has passed them.

    counting: whether the host's waits count
    """

    def __init__(self) -> None:
        self.counting = True
        self.total = 0.0
        self.events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def add(self, seconds: float) -> None:
        """Add a wait of the host."""
        if self.counting:
            self.total += seconds

    def now(self, device: torch.device) -> Moment:
        """Return the host's time, or an event on the device's current stream."""
        if device.type != "cuda":
            return time.monotonic()
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    def add_between(self, begin: Moment, end: Moment) -> None:
        if isinstance(begin, float) and isinstance(end, float):
            self.add(end - begin)
        elif not isinstance(begin, float) and not isinstance(end, float):
            self.events.append((begin, end))
            self.seconds()  # so that they do not pile up

    @contextmanager
    def waiting(self, device: torch.device) -> Iterator[None]:
        begin = self.now(device)
        yield
        self.add_between(begin, self.now(device))

    def seconds(self) -> float:
        """Return the seconds of all waits that have ended."""
        while self.events and self.events[0][1].query():  # type: ignore[no-untyped-call]
            begin, end = self.events.popleft()
            self.total += begin.elapsed_time(end) / 1000
        return self.total
