"""The rate schedules that result from the faults of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod

from sgp_runner.cluster.churn import Absences
from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.cluster.rates import STEADY, WorkSchedule, piecewise


class Timetable:
    """The rate schedules of compute, interfaces and paths that result from the faults."""

    def __init__(self, faults: Faults, absences: Absences | None = None) -> None:
        self.events, self.absences = faults.all_events, absences
        # Lets frequent callers skip the lookup.
        self.steady = not self.events and absences is None
        self.schedules: dict[tuple[str, int, int], WorkSchedule] = {}

    def slow(self, rank: int) -> WorkSchedule:
        return self.look_up("slow", rank, rank, lambda now: slowness("slow_node", now, rank))

    def computing(self, rank: int) -> WorkSchedule:
        return self.look_up(
            "computing",
            rank,
            rank,
            lambda now: inf if halted(now, rank) else slowness("slow_node", now, rank),
        )

    def awake(self, rank: int) -> WorkSchedule:
        return self.look_up("awake", rank, rank, lambda now: inf if halted(now, rank) else 1)

    def link(self, rank: int) -> WorkSchedule:
        """Return the rate schedule of the interface of ``rank``."""
        return self.look_up(
            "link", rank, rank, lambda now: inf if down(now, rank) else slower_link(now, (rank,))
        )

    def path(self, src: int, dst: int) -> WorkSchedule:
        """Return the rate schedule of the path between two interfaces."""
        return self.look_up(
            "path", src, dst, lambda now: inf if any(event.parts(src, dst) for event in now) else 1
        )

    def together(self, ranks: range, factor: Callable[[float], float]) -> WorkSchedule:
        """Return the rate schedule of a collective of ``ranks``.

        factor: maps the slow-down of the slowest link to that of the collective
        """

        def slower(now: Sequence[Event]) -> float:
            apart = any(
                event.what == "partition" and len({rank in event.ranks for rank in ranks}) > 1
                for event in now
            )
            return (
                inf
                if apart or any(halted(now, rank) for rank in ranks)
                else factor(slower_link(now, ranks))
            )

        return self.schedule(ranks, slower)

    def look_up(
        self, what: str, src: int, dst: int, factor: Callable[[Sequence[Event]], float]
    ) -> WorkSchedule:
        if self.steady:
            return STEADY
        key = what, src, dst
        if key not in self.schedules:
            self.schedules[key] = self.schedule((dst,), factor)
        return self.schedules[key]

    def schedule(
        self, ranks: Sequence[int], factor: Callable[[Sequence[Event]], float]
    ) -> WorkSchedule:
        """Return the schedule of work that stops while one of ``ranks`` is absent."""
        usual = piecewise(self.events, factor)
        if self.absences is None:
            return usual
        return Interrupted(usual, self.events, factor, ranks, self.absences)


@dataclass(frozen=True)
class Interrupted(WorkSchedule):
    """The ``usual`` schedule of ``events``, interrupted while any of ``ranks`` is absent.

    factor: maps the events at a time to the time that a second of work takes
    """

    usual: WorkSchedule
    events: Sequence[Event]
    factor: Callable[[Sequence[Event]], float]
    ranks: Sequence[int]
    absences: Absences

    def finish(self, begin: float, end: float) -> float:
        """Return the finish time, like `RateSchedule.finish`, and draw the absences up to it.

        Raises TooManyAbsences if too many absences would interrupt the work.
        """
        self.absences.check(end - begin, len(self.ranks))
        done = end
        while done < inf:
            absent = [
                absence
                for rank in self.ranks
                for absence in self.absences.during(rank, begin, done)
            ]
            schedule = piecewise([*self.events, *absent], self.factor) if absent else self.usual
            later = schedule.finish(begin, end)
            if later <= done:
                return later
            done = later
        return inf


def halted(events: Iterable[Event], rank: int) -> bool:
    return any(event.what in ("pause", "crash") and rank in event.ranks for event in events)


def down(events: Iterable[Event], rank: int) -> bool:
    return any(event.what == "crash" and rank in event.ranks for event in events)


def slowness(what: str, events: Iterable[Event], rank: int) -> float:
    return prod(
        event.factor or 1.0 for event in events if event.what == what and rank in event.ranks
    )


def slower_link(events: Sequence[Event], ranks: Iterable[int]) -> float:
    return max(slowness("slow_link", events, rank) for rank in ranks)
