"""Rate schedules, which give the finish times of work that slows down, stops and resumes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from sgp_runner.cluster.faults import Event


class WorkSchedule(Protocol):
    """The interface of a schedule of work that slows down, stops and resumes."""

    def finish(self, begin: float, end: float) -> float: ...
    def clear(self, moment: float) -> float:
        """Return the first time from ``moment`` on at which work does not stop."""
        return self.finish(moment, moment)


@dataclass(frozen=True)
class RateSchedule(WorkSchedule):
    """A schedule with a piecewise constant time per second of work.

    pieces: (from, to, factor), disjoint and in order; a second of work takes ``factor`` seconds,
        and an infinite factor means that work stops.
    """

    pieces: tuple[tuple[float, float, float], ...] = ()

    def finish(self, begin: float, end: float) -> float:
        """Return the finish time of work that would last from ``begin`` to ``end`` at full speed.

        Work of zero duration also waits for the end of a stop.
        """
        for start, stop, factor in self.pieces:
            if stop <= begin:
                continue
            if start >= end and start > begin:
                break
            at = max(begin, start)
            if factor == float("inf"):
                end += stop - at
            elif (end - at) * factor <= stop - at:
                return at + (end - at) * factor
            else:
                end += (stop - at) * (1 - 1 / factor)
        return end


STEADY = RateSchedule()


def piecewise(events: Sequence[Event], factor: Callable[[Sequence[Event]], float]) -> RateSchedule:
    """Return a schedule whose factor at each time is ``factor`` of the active events."""
    if not events:
        return STEADY
    bounds = sorted({moment for event in events for moment in (event.start, event.stop)})
    to_come = sorted(range(len(events)), key=lambda i: events[i].start, reverse=True)
    now: list[int] = []
    pieces = []
    for start, stop in pairwise(bounds):
        now = [i for i in now if events[i].stop > start]
        while to_come and events[to_come[-1]].start == start:
            insort(now, to_come.pop())
        slower = factor([events[i] for i in now])
        if slower != 1:
            pieces.append((start, stop, slower))
    return RateSchedule(tuple(pieces))
