"""Churn: nodes that leave at random times and return."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

from sgp_runner.cluster.faults import Event, Faults
from sgp_runner.utils.errors import TooManyAbsences
from sgp_runner.utils.seeding import seed_of
from sgp_runner.utils.units import HOUR, duration

if TYPE_CHECKING:
    from numpy.random import Generator

_CHURN = 206  # stream of random numbers
MAX_ABSENCES = 1_000_000  # absences of a node; more are likely a typo and would exhaust memory
MAX_ABSENCES_IN_WORK = 10_000  # absences during one message, gradient or collective


class Absences:
    """The absences caused by churn, each of which is a temporary crash. They are drawn on demand.

    The absences of a node depend only on the seed and on the node's original rank.

    names: original rank of each node
    """

    def __init__(self, faults: Faults, seed: int, names: Sequence[int]) -> None:
        self.faults, self.seed, self.names = faults, seed, names
        self.drawn: dict[int, list[Event]] = {}  # by rank, in order
        self.randoms: dict[int, Generator] = {}

    def check(self, seconds: float, ranks: int) -> None:
        """Raise TooManyAbsences if ``ranks`` nodes would interrupt work of ``seconds`` too often.

        The simulator simulates each interruption, so the run would appear to hang.
        """
        expected = ranks * seconds / HOUR * self.faults.churn_per_hour
        if MAX_ABSENCES_IN_WORK < expected < inf:
            raise TooManyAbsences(
                "faults.churn_per_hour",
                f"a message, gradient or collective that takes {duration(seconds)} would be "
                f"interrupted about {expected:,.0f} times, and at most {MAX_ABSENCES_IN_WORK:,} "
                "are simulated: use a smaller number, or a faster cluster.",
            )

    def during(self, rank: int, begin: float, end: float) -> Iterator[Event]:
        """Yield the absences of ``rank`` from ``begin`` to ``end`` (seconds); a server has none."""
        if rank >= len(self.names):
            return
        absences = self.drawn_until(rank, end)
        for i in range(
            bisect_right(absences, begin, key=lambda absence: absence.stop), len(absences)
        ):
            if absences[i].start > end:
                return
            yield absences[i]

    def drawn_until(self, rank: int, moment: float) -> list[Event]:
        from numpy.random import default_rng

        if rank not in self.drawn:
            self.drawn[rank] = []
            self.randoms[rank] = default_rng(seed_of(self.seed, _CHURN, self.names[rank]))
        absences, random = self.drawn[rank], self.randoms[rank]
        while (back := absences[-1].stop if absences else 0.0) <= moment:
            if len(absences) == MAX_ABSENCES:
                raise TooManyAbsences(
                    "faults.churn_per_hour",
                    f"a node would leave more than {MAX_ABSENCES:,} times in {duration(moment)}: "
                    "use a smaller number.",
                )
            leaves = back + float(random.exponential(HOUR / self.faults.churn_per_hour))
            away = float(random.exponential(self.faults.absence_seconds))
            absences.append(Event("crash", (rank,), leaves, leaves + away))
        return absences
