"""How fast something goes, over time: the arithmetic of everything that slows down, stops and goes
on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar


class Interval(Protocol):
    """Something that lasts from ``start`` to ``stop`` (seconds)."""

    @property
    def start(self) -> float: ...
    @property
    def stop(self) -> float: ...


S = TypeVar("S", bound=Interval)


@dataclass(frozen=True)
class RateSchedule:
    """pieces: (from, to, factor), disjoint and in order: meanwhile a second of work takes
    ``factor`` seconds; it may stand still.
    """

    pieces: tuple[tuple[float, float, float], ...] = ()

    def finish(self, begin: float, end: float) -> float:
        """When work is done that would last from ``begin`` to ``end``; nothing is done, not even
        nothing, while it stands still.
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
        """The first moment from ``moment`` on at which it does not stand still."""
        return self.finish(moment, moment)


STEADY = RateSchedule()


def piecewise(intervals: Sequence[S], factor: Callable[[Sequence[S]], float]) -> RateSchedule:
    """What ``factor`` says of the intervals that overlap, piece by piece."""
    if not intervals:
        return STEADY
    bounds = sorted({moment for spell in intervals for moment in (spell.start, spell.stop)})
    pieces = []
    for start, stop in pairwise(bounds):
        slower = factor(
            [spell for spell in intervals if spell.start <= start and stop <= spell.stop]
        )
        if slower != 1:
            pieces.append((start, stop, slower))
    return RateSchedule(tuple(pieces))
