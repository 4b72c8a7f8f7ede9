"""Rate schedules: the arithmetic of work that slows down, stops and resumes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar


class Interval(Protocol):
    """An interval from ``start`` to ``stop`` (seconds)."""

    @property
    def start(self) -> float: ...
    @property
    def stop(self) -> float: ...


S = TypeVar("S", bound=Interval)


class WorkSchedule(Protocol):
    """When work is done that slows down, stops and resumes."""

    def finish(self, begin: float, end: float) -> float: ...
    def clear(self, moment: float) -> float: ...


@dataclass(frozen=True)
class RateSchedule:
    """The time that a second of work takes, piece by piece.

    pieces: (from, to, factor), disjoint and in order; a second of work takes ``factor`` seconds,
        and an infinite factor means that work stops.
    """

    pieces: tuple[tuple[float, float, float], ...] = ()

    def finish(self, begin: float, end: float) -> float:
        """When work that would last from ``begin`` to ``end`` is done.

        Work without duration also waits until a stop is over.
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

    def clear(self, moment: float) -> float:
        """Return the first time from ``moment`` on at which work does not stop."""
        return self.finish(moment, moment)


STEADY = RateSchedule()


def piecewise(intervals: Sequence[S], factor: Callable[[Sequence[S]], float]) -> RateSchedule:
    """Return the schedule with the ``factor`` of the intervals that overlap at each time."""
    if not intervals:
        return STEADY
    bounds = sorted({moment for each in intervals for moment in (each.start, each.stop)})
    to_come = sorted(range(len(intervals)), key=lambda i: intervals[i].start, reverse=True)
    now: list[int] = []
    pieces = []
    for start, stop in pairwise(bounds):
        now = [i for i in now if intervals[i].stop > start]
        while to_come and intervals[to_come[-1]].start == start:
            insort(now, to_come.pop())
        slower = factor([intervals[i] for i in now])
        if slower != 1:
            pieces.append((start, stop, slower))
    return RateSchedule(tuple(pieces))
