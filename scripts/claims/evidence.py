"""Evidence for a claim: paired differences over seeds, tests of ranges, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf, isclose, sqrt

from scipy.stats import t, ttest_rel

from claims.power import LEVEL, MAX_SEEDS, Plan, seeds_needed
from claims.tuning import Joint, Search
from sgp_runner.session.job_pool import RunJob


class Verdict(Enum):
    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided at this scale"


@dataclass(frozen=True)
class Interval:
    """A mean over ``seeds`` and its 95 % confidence interval, Student's.

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

    @property
    def error(self) -> float:
        """The standard error of the mean; 0 for an exact value."""
        if self.seeds == 1:
            return 0.0
        return (self.high - self.low) / 2 / float(t.ppf(1 - LEVEL, self.seeds - 1))

    @property
    def spread(self) -> float:
        """The standard deviation between seeds."""
        return self.error * sqrt(self.seeds)

    def not_above(self, bound: float) -> float:
        """Return the one-sided p-value of "the effect is at most ``bound``"."""
        if self.seeds == 1:
            return 0.0 if self.mean >= bound else 1.0
        return float(t.sf((self.mean - bound) / self.error, self.seeds - 1))

    @property
    def mirrored(self) -> Interval:
        return Interval(-self.mean, -self.high, -self.low, self.seeds)


@dataclass(frozen=True)
class Between:
    """The range in which a claim expects an effect."""

    least: float = -inf
    most: float = inf

    def test(self, effect: Interval) -> tuple[Verdict, float]:
        """The verdict that ``effect`` supports, and the p-value of the opposite.

        Two one-sided tests (TOST), one for each bound, show that the effect lies inside; the
        larger p-value counts. Either test alone can show that the effect lies outside.
        """
        if effect.spreadless:
            return Verdict.UNDECIDED, 1.0
        inside = max(effect.not_above(self.least), effect.mirrored.not_above(-self.most))
        outside = 1 - inside
        if inside <= outside:
            return Verdict.REPRODUCED, inside
        return Verdict.CONTRADICTED, outside

    def distance(self, value: float) -> float:
        """How far ``value`` is from the nearest bound."""
        return min(abs(value - self.least), abs(value - self.most))

    def __str__(self) -> str:
        if self.least == -inf:
            return f"at most {self.most:.3g}"
        return (
            f"at least {self.least:.3g}"
            if self.most == inf
            else f"{self.least:.3g} to {self.most:.3g}"
        )


@dataclass(frozen=True)
class Finding:
    """One comparison.

    part: the tested part of the claim's sentence. what: a description. unit: unit of the effect.
    jobs: the runs that give the effect. beside: the same comparison by another measure, which
    decides nothing. primary: whether it is tested alone, with seeds chosen for it; the other
    findings share one level. earlier: whether it is only shown, and a second sample decides, which
    was specified before it was run.
    """

    part: str
    what: str
    unit: str
    effect: Interval
    expected: Between
    jobs: tuple[RunJob, ...] = ()
    beside: str = ""
    primary: bool = False
    earlier: bool = False


@dataclass(frozen=True)
class Judged:
    """A finding with its verdict and its p-value, adjusted; None where nothing is random."""

    finding: Finding
    verdict: Verdict
    p: float | None

    @property
    def wanted(self) -> str:
        """The seeds needed for a verdict at the measured effect and spread; empty once decided.

        The number ignores the adjustment for other findings.
        """
        effect = self.finding.effect
        if self.verdict is not Verdict.UNDECIDED or effect.spreadless:
            return ""
        distance = self.finding.expected.distance(effect.mean)
        seeds = seeds_needed(distance, effect.spread) if distance > 0 else None
        return f"about {seeds} seeds" if seeds else f"over {MAX_SEEDS} seeds"


@dataclass(frozen=True)
class Curves:
    """A figure of at most eight curves over logarithmic axes, labelled at their ends.

    lines: the points (x, y) of each, by its label.
    """

    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Sample:
    """Runs that are judged together.

    searches: the tuning before the runs. jobs: the runs, known once the tuning has finished.
    find: the findings of the finished runs.
    """

    jobs: Callable[[], Sequence[RunJob]]
    find: Callable[[], Sequence[Finding]]
    searches: tuple[Search | Joint, ...] = ()

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
    first finding, ``{0:size}`` for the same mean without sign, and so on.
    source: paper and table or figure; empty for an explanation of another claim. tried: the
    runs, their test, and further attempts where the claim does not reproduce.
    samples: the first one is required; each of the others, specified later, counts once it has
    finished. plan: the power of the primary finding; None where nothing is random, or where the
    runs are older than the rule. earlier: the verdict of an earlier design, whose page is kept.
    curves: the content of its figure, if not the findings. explains:
    the number of the claim whose verdict it explains; 0 for an independent claim.
    """

    number: int
    subject: str
    sentence: str
    tried: str
    samples: tuple[Sample, ...]
    source: str = ""
    plan: Plan | None = None
    answer: str = ""
    earlier: str = ""
    curves: Callable[[], Curves] | None = None
    explains: int = 0

    @property
    def origin(self) -> str:
        """Source of the sentence."""
        if self.explains:
            return f"Ours, a reason for the verdict of claim {self.explains}, decided after it"
        return self.source

    @property
    def searches(self) -> tuple[Search | Joint, ...]:
        return tuple(search for sample in self.samples for search in sample.searches)

    @property
    def jobs(self) -> tuple[RunJob, ...]:
        """The runs of all samples whose searches have finished; others are not known yet."""
        return tuple(job for sample in self.samples if sample.tuned for job in sample.jobs())

    @property
    def judged(self) -> bool:
        return self.samples[0].finished

    @property
    def complete(self) -> bool:
        return all(sample.finished for sample in self.samples)

    def find(self) -> list[Finding]:
        """Return the findings of all finished samples; the claim must be `judged`."""
        return [finding for sample in self.samples if sample.finished for finding in sample.find()]


def judge(findings: Sequence[Finding]) -> list[Judged]:
    """Judge each finding, in their order.

    The primary one is tested at `LEVEL`; the p-values of the others that are random are adjusted by
    Holm's method, so that the probability of any wrong verdict among them is at most `LEVEL`. An
    earlier finding is shown as it was tested, alone.
    """
    tests = [finding.expected.test(finding.effect) for finding in findings]
    shared = [
        place
        for place, finding in enumerate(findings)
        if not (finding.primary or finding.earlier or finding.effect.seeds == 1)
    ]
    adjusted = dict(zip(shared, holm([tests[place][1] for place in shared]), strict=True))
    out = []
    for place, (finding, (verdict, p)) in enumerate(zip(findings, tests, strict=True)):
        level = adjusted.get(place, p)
        told = verdict if level <= LEVEL else Verdict.UNDECIDED
        out.append(Judged(finding, told, None if finding.effect.seeds == 1 else level))
    return out


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's method (1979), in their order."""
    out, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, (len(p_values) - rank) * p_values[place])
        out[place] = min(1.0, largest)
    return out


def parts(judged: Sequence[Judged]) -> dict[str, Verdict]:
    """Judge each part: any of its findings can contradict it, only all together reproduce it."""
    found: dict[str, list[Verdict]] = {}
    for each in judged:
        if not each.finding.earlier:
            found.setdefault(each.finding.part, []).append(each.verdict)
    return {part: worst(verdicts) for part, verdicts in found.items()}


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    for verdict in (Verdict.CONTRADICTED, Verdict.UNDECIDED):
        if verdict in verdicts:
            return verdict
    return Verdict.REPRODUCED


def headline(judged: Sequence[Judged]) -> str:
    """Count the parts that hold; name the other parts, and the needs of open parts."""
    by_part = parts(judged)
    if len(by_part) == 1:
        return next(each.value for each in by_part.values())
    named = {
        verdict: [part for part, each in by_part.items() if each is verdict] for verdict in Verdict
    }
    said = [f"{len(named[Verdict.REPRODUCED])} of {len(by_part)} parts reproduced"]
    if contradicted := named[Verdict.CONTRADICTED]:
        said.append(f"contradicted: {', '.join(contradicted)}")
    if undecided := named[Verdict.UNDECIDED]:
        said.append(f"undecided: {', '.join(with_needs(judged, undecided))}")
    return "; ".join(said)


def with_needs(judged: Sequence[Judged], undecided: Sequence[str]) -> Iterator[str]:
    """Yield the undecided parts, each with what its first undecided finding needs."""
    for part in undecided:
        needs = [each.wanted for each in judged if each.finding.part == part and each.wanted]
        yield f"{part} ({needs[0]})" if needs else part


def exactly(value: float) -> Interval:
    """Return the interval of a result without randomness."""
    return Interval(value, value, value, 1)


def alike(values: Sequence[float]) -> bool:
    """Return whether all values are equal up to rounding."""
    return isclose(max(values), min(values), rel_tol=1e-9, abs_tol=1e-9)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean difference of two samples and its interval by Student's paired t-test.

    Both samples have the same seeds, at least two, in the same order.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = sum(differences) / len(differences)
    if alike(differences):  # no spread: the test divides by it
        return Interval(mean, mean, mean, len(differences))
    low, high = ttest_rel(ours, theirs).confidence_interval(0.95)
    return Interval(mean, float(low), float(high), len(differences))


def mean_of(values: Sequence[float]) -> Interval:
    """Mean of a sample over seeds and its interval."""
    return paired(values, [0.0] * len(values))
