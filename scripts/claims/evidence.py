"""Evidence for a claim: paired differences over seeds, tests of ranges, and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from claims.tuning import Joint, Search
from sgp_runner.session.job_pool import RunJob
from sgp_runner.studies.power import MAX_SEEDS, SeedPlan, seeds_needed
from sgp_runner.studies.statistics import LEVEL, Between, Interval, holm


class Verdict(Enum):
    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided at this scale"


def verdict_of(expected: Between, effect: Interval) -> tuple[Verdict, float]:
    """Return the verdict that ``effect`` supports, and the p-value of the opposite hypothesis.

    One of the two tests of `Between.inside` is enough to show that the effect lies outside the
    range. An effect without a spread decides nothing.
    """
    if effect.spreadless:
        return Verdict.UNDECIDED, 1.0
    inside = expected.inside(effect)
    outside = 1 - inside
    if inside <= outside:
        return Verdict.REPRODUCED, inside
    return Verdict.CONTRADICTED, outside


@dataclass(frozen=True)
class Finding:
    """One comparison.

    part: the part of the claim's sentence that it tests. what: a description. unit: unit of the
    effect. jobs: the runs that give the effect. beside: the same comparison by another measure,
    shown as text and without influence on the verdict. primary: whether it has a separate test and
    a number of seeds chosen for it; all other findings share one level. earlier: whether it is only
    shown, because a second sample decides, which was specified before it was run.
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
    """A finding with its verdict and its adjusted p-value; None for a result without randomness."""

    finding: Finding
    verdict: Verdict
    p: float | None

    @property
    def wanted(self) -> str:
        """The number of seeds that would give a verdict at the measured effect and spread.

        It is empty if there is a verdict, and it ignores the adjustment for other findings.
        """
        effect = self.finding.effect
        if self.verdict is not Verdict.UNDECIDED or effect.spreadless:
            return ""
        distance = self.finding.expected.distance(effect.mean)
        seeds = seeds_needed(distance, effect.spread) if distance > 0 else None
        return f"about {seeds} seeds" if seeds else f"over {MAX_SEEDS} seeds"


@dataclass(frozen=True)
class Curves:
    """A figure of at most eight curves on logarithmic axes, labelled at their ends.

    lines: the points (x, y) of each curve, by its label.
    """

    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Sample:
    """Runs that are judged together.

    searches: the tuning before the runs. jobs: the runs; call it only after the tuning has
    finished. find: the findings; call it only after the runs have finished.
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
    first finding, ``{0:size}`` for its absolute value, and so on for other findings. source: paper
    and table or figure; empty for an explanation of another claim. tried: a text about the runs and
    their test, and about further attempts if the claim was not reproduced. samples: the first
    sample is required; later ones count once they have finished. plan: the power of the primary
    finding; None if the result is not random, or if the runs are older than the rule about power.
    earlier: the verdict of an earlier design, whose page is still available. curves: what the
    figure shows; None: it shows the findings. explains: the number of the claim whose verdict it
    explains; 0 for an independent claim.
    """

    number: int
    subject: str
    sentence: str
    tried: str
    samples: tuple[Sample, ...]
    source: str = ""
    plan: SeedPlan | None = None
    answer: str = ""
    earlier: str = ""
    curves: Callable[[], Curves] | None = None
    explains: int = 0

    @property
    def origin(self) -> str:
        """The source of the sentence."""
        if self.explains:
            return f"Ours, a reason for the verdict of claim {self.explains}, decided after it"
        return self.source

    @property
    def searches(self) -> tuple[Search | Joint, ...]:
        return tuple(search for sample in self.samples for search in sample.searches)

    @property
    def jobs(self) -> tuple[RunJob, ...]:
        """The runs of all samples whose searches have finished; no other runs are known yet."""
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
    """Judge each finding, in the given order.

    The primary finding is tested at `LEVEL`. The p-values of all other random findings are adjusted
    by Holm's method, so that the probability of any wrong verdict among them is at most `LEVEL`. An
    earlier finding is shown with its original test, without adjustment.
    """
    tests = [verdict_of(finding.expected, finding.effect) for finding in findings]
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


def parts(judged: Sequence[Judged]) -> dict[str, Verdict]:
    """Return the verdict on each part of a claim.

    One contradicted finding contradicts its part. A part is reproduced only if all of its findings
    are.
    """
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
    """Return how many parts are reproduced, and the names of the other parts."""
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
    """Yield each undecided part, with the seeds that its first undecided finding needs."""
    for part in undecided:
        needs = [each.wanted for each in judged if each.finding.part == part and each.wanted]
        yield f"{part} ({needs[0]})" if needs else part
