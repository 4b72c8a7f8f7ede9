"""Evidence for a claim: paired differences over seeds, confidence intervals and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isclose

from claims.tuning import Search
from sgp_runner.session.job_pool import Job


class Verdict(Enum):
    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided at this scale"


@dataclass(frozen=True)
class Interval:
    """A mean over ``seeds`` and its 95 % confidence interval.

    For one exact value all three numbers are the same and ``seeds`` is 1.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def spreadless(self) -> bool:
        """Whether all seeds gave the same value, so that the interval is unknown."""
        return self.seeds > 1 and self.low == self.high


@dataclass(frozen=True)
class Between:
    """The range in which a claim expects an effect."""

    least: float = float("-inf")
    most: float = float("inf")

    def judge(self, effect: Interval) -> Verdict:
        """Compare the confidence interval of ``effect`` with the range.

        Reproduced if all of it lies inside, contradicted if all of it lies outside, undecided
        otherwise or without an interval.
        """
        if effect.spreadless:
            return Verdict.UNDECIDED
        if self.least <= effect.low and effect.high <= self.most:
            return Verdict.REPRODUCED
        if effect.high < self.least or effect.low > self.most:
            return Verdict.CONTRADICTED
        return Verdict.UNDECIDED

    def __str__(self) -> str:
        if self.least == float("-inf"):
            return f"at most {self.most:.3g}"
        return (
            f"at least {self.least:.3g}"
            if self.most == float("inf")
            else f"{self.least:.3g} to {self.most:.3g}"
        )


@dataclass(frozen=True)
class Finding:
    """One comparison.

    what: a description with the unit. jobs: the runs that it rests on. earlier: it is shown, but a
    second sample, specified before it was run, decides in its place.
    """

    what: str
    effect: Interval
    expected: Between
    jobs: tuple[Job, ...] = ()
    earlier: bool = False

    @property
    def verdict(self) -> Verdict:
        return self.expected.judge(self.effect)


@dataclass(frozen=True)
class Sample:
    """Runs that are judged together.

    searches: the tuning that comes first. jobs: the runs, known once that has finished. find: the
    findings of the finished runs.
    """

    jobs: Callable[[], Sequence[Job]]
    find: Callable[[], Sequence[Finding]]
    searches: tuple[Search, ...] = ()

    @property
    def tuned(self) -> bool:
        return all(search.finished for search in self.searches)

    @property
    def finished(self) -> bool:
        return self.tuned and all(job.finished for job in self.jobs())


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper and its test.

    subject: a short title. answer: one line for a judged claim; ``{0}`` stands for the mean of the
    first finding, and so on.
    source: paper and table or figure. tried: the runs, how they are judged, and further attempts
    where the claim does not reproduce.
    samples: the first one is required; each of the others, specified later, counts once it has
    finished.
    trials: experiments on held-out samples to understand a result; they decide nothing.
    """

    number: int
    subject: str
    sentence: str
    source: str
    tried: str
    samples: tuple[Sample, ...]
    trials: tuple[Search, ...] = ()
    answer: str = ""

    @property
    def searches(self) -> tuple[Search, ...]:
        return tuple(search for sample in self.samples for search in sample.searches)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The runs of all samples whose searches have finished; others are not known yet."""
        return tuple(job for sample in self.samples if sample.tuned for job in sample.jobs())

    @property
    def judged(self) -> bool:
        return self.samples[0].finished

    @property
    def complete(self) -> bool:
        return all(sample.finished for sample in self.samples)

    def find(self) -> list[Finding]:
        """The findings of all finished samples; the claim must be `judged`."""
        return [finding for sample in self.samples if sample.finished for finding in sample.find()]


def verdict_of(findings: Sequence[Finding]) -> Verdict:
    """Contradicted by any finding that decides, reproduced by all of them, else undecided."""
    verdicts = {finding.verdict for finding in findings if not finding.earlier}
    for verdict in (Verdict.CONTRADICTED, Verdict.UNDECIDED):
        if verdict in verdicts:
            return verdict
    return Verdict.REPRODUCED


def exactly(value: float) -> Interval:
    """The interval of a result without randomness."""
    return Interval(value, value, value, 1)


def alike(values: Sequence[float]) -> bool:
    """Whether all values are equal up to rounding."""
    return isclose(max(values), min(values), rel_tol=1e-9, abs_tol=1e-9)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean difference of two samples and its interval by Student's paired t-test.

    Both samples have the same seeds, at least two, in the same order.
    """
    from scipy.stats import ttest_rel

    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = sum(differences) / len(differences)
    if alike(differences):  # no spread: the test divides by it
        return Interval(mean, mean, mean, len(differences))
    low, high = ttest_rel(ours, theirs).confidence_interval(0.95)
    return Interval(mean, float(low), float(high), len(differences))
