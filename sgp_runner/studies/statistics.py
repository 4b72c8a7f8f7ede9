"""Statistics of paired samples: intervals, tests, families of tests, ranks, and times to a target.

Samples are paired by seed. Intervals are Student's, at 95 %, or follow from the ranks of the
differences (Wilcoxon 1945; Hodges and Lehmann 1963). Equivalence is shown by two one-sided tests
(Schuirmann 1987), and p-values of a family are adjusted by Holm's method (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import inf, isclose, sqrt
from statistics import median
from typing import TypeVar

from sgp_runner.utils.sums import sum_in_order

Name = TypeVar("Name", bound=Hashable)
LEVEL = 0.025  # of a one-sided test: 95 % intervals leave 2.5 % on each side
MIN_RANKED = 6  # seeds with which a signed-rank test can reach a two-sided p-value of 5 %


@dataclass(frozen=True)
class Interval:
    """A mean over ``seeds`` with its 95 % confidence interval by Student's t-distribution.

    For an exact value, mean, low and high are equal and ``seeds`` is 1.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def spreadless(self) -> bool:
        """Whether all seeds gave the same value; the confidence interval is then unknown."""
        return self.seeds > 1 and self.low == self.high

    @property
    def error(self) -> float:
        """The standard error of the mean; 0 for an exact value."""
        from scipy.stats import t

        if self.seeds == 1:
            return 0.0
        return (self.high - self.low) / 2 / float(t.ppf(1 - LEVEL, self.seeds - 1))

    @property
    def spread(self) -> float:
        """The standard deviation between seeds."""
        return self.error * sqrt(self.seeds)

    def not_above(self, bound: float) -> float:
        """Return the one-sided p-value of the hypothesis that the effect is at most ``bound``."""
        from scipy.stats import t

        if self.seeds == 1:
            return 0.0 if self.mean >= bound else 1.0
        return float(t.sf((self.mean - bound) / self.error, self.seeds - 1))

    @property
    def mirrored(self) -> Interval:
        return Interval(-self.mean, -self.high, -self.low, self.seeds)

    @property
    def p(self) -> float:
        """The two-sided p-value of the hypothesis that the effect is 0; 1 without a spread."""
        if self.spreadless or self.seeds == 1:
            return 1.0
        return min(1.0, 2 * min(self.not_above(0.0), self.mirrored.not_above(0.0)))


@dataclass(frozen=True)
class RankedInterval(Interval):
    """An outlier-robust difference over ``seeds``, with its 95 % interval.

    mean: the Hodges-Lehmann estimate, which is the median of ``averages``
    averages: of each pair of differences, and of each difference with itself (Walsh), sorted
    """

    averages: tuple[float, ...]

    def not_above(self, bound: float) -> float:
        """Return the exact p-value of Wilcoxon's signed-rank test; ties count against it."""
        return signed_rank_tail(self.seeds)[sum(average > bound for average in self.averages)]

    @property
    def mirrored(self) -> RankedInterval:
        averages = tuple(-average for average in reversed(self.averages))
        return RankedInterval(-self.mean, -self.high, -self.low, self.seeds, averages)


@dataclass(frozen=True)
class Between:
    """A range in which an effect may lie."""

    least: float
    most: float

    def inside(self, effect: Interval) -> float:
        """Return the p-value of the hypothesis that the effect lies outside the range.

        Two one-sided tests (TOST), one for each bound, show that the effect lies inside; the larger
        p-value counts. If the spread is 0, the result is 1.
        """
        if effect.spreadless:
            return 1.0
        return max(effect.not_above(self.least), effect.mirrored.not_above(-self.most))


def exactly(value: float) -> Interval:
    """Return the interval of a result without randomness."""
    return Interval(value, value, value, 1)


def alike(values: Sequence[float]) -> bool:
    """Return whether all values are equal up to rounding errors."""
    return isclose(max(values), min(values), rel_tol=1e-9, abs_tol=1e-9)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the mean difference of two samples and its interval by Student's paired t-test.

    Both samples have the same seeds, at least two, in the same order.
    """
    from scipy.stats import ttest_rel

    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = sum_in_order(differences) / len(differences)
    if alike(differences):  # the test would divide by a spread of 0
        return Interval(mean, mean, mean, len(differences))
    low, high = ttest_rel(ours, theirs).confidence_interval(0.95)
    return Interval(mean, float(low), float(high), len(differences))


def ranked(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the difference of two samples of at least `MIN_RANKED` seeds by ranks.

    A diverged run has an arbitrarily bad value, which in a mean would hide any difference; here its
    difference merely gets the largest rank (Lachin 1999).
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    seeds = len(differences)
    if alike(differences):
        return paired(ours, theirs)
    averages = sorted((a + b) / 2 for a, b in combinations_with_replacement(differences, 2))
    # As many averages as the test may leave out on each side.
    out = sum(p <= LEVEL for p in signed_rank_tail(seeds)) - 1
    return RankedInterval(
        median(averages), averages[out], averages[-1 - out], seeds, tuple(averages)
    )


@lru_cache
def signed_rank_tail(seeds: int) -> tuple[float, ...]:
    """Return the probability, by chance, of a sum of positive ranks of at least 0, 1, ...."""
    import numpy as np

    chances = np.ones(1)
    for rank in range(1, seeds + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return tuple(chances[::-1].cumsum()[::-1].tolist())


def mean_of(values: Sequence[float]) -> Interval:
    """Return the mean of a sample over seeds, and its interval."""
    return paired(values, [0.0] * len(values))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's method (1979) and return them in the given order."""
    out, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - rank) * p_values[place])
        out[place] = min(1.0, largest)
    return out


def ranks(
    names: Sequence[Name], effect_of: Callable[[Name, Name], Interval], level: float = 2 * LEVEL
) -> dict[Name, int]:
    """Return the rank of each name: 1 plus the number of names that are lower.

    A name is lower than another if the test of their difference ``effect_of`` is significant at
    ``level``; the p-values of all pairs are adjusted by Holm's method. Names that differ by the
    same amount for every seed are compared by this amount. Names that the tests do not separate can
    share a rank.
    """
    pairs = [*combinations(names, 2)]
    effects = [effect_of(a, b) for a, b in pairs]
    adjusted = holm([0.0 if effect.spreadless else effect.p for effect in effects])
    out = dict.fromkeys(names, 1)
    for (a, b), effect, p in zip(pairs, effects, adjusted, strict=True):
        if p <= level and not isclose(effect.mean, 0.0, abs_tol=1e-12):
            out[a if effect.mean > 0 else b] += 1
    return out


@dataclass(frozen=True)
class Reached:
    """Times, or bytes, at which the runs of an arm reach a target, one for each seed.

    at: None for a run that never reaches it
    end: where each run ended
    """

    at: tuple[float | None, ...]
    end: tuple[float, ...]

    @property
    def count(self) -> int:
        """Number of runs that reach the target."""
        return sum(time is not None for time in self.at)

    @property
    def median(self) -> float:
        """The median over all runs; infinite if half of them never reach the target."""
        return median(inf if time is None else time for time in self.at)

    def restricted(self, horizon: float) -> tuple[float, ...]:
        """Return the time of each run, with later and missing times replaced by ``horizon``.

        Their mean is the restricted mean survival time (Royston and Parmar 2013).
        """
        return tuple(horizon if time is None else min(time, horizon) for time in self.at)


def horizon_of(arms: Sequence[Reached]) -> float:
    """Return the time up to which all runs were observed: the first end short of the target.

    A diverged run has an infinite end; it counts as observed for as long as any other. The result
    is infinite if all runs reach the target.
    """
    pairs = [pair for arm in arms for pair in zip(arm.at, arm.end, strict=True)]
    missing = [end for time, end in pairs if time is None]
    if not missing:
        return inf
    longest = max((end for _, end in pairs if end < inf), default=inf)
    return min(longest, *missing)
