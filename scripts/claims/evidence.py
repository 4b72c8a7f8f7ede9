"""Evidence for a claim: effects, tests of expected ranges, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.studies.power import wanted
from sgp_runner.studies.statistics import LEVEL, Between, Interval, holm

LOOKS = 2  # samples of a finding that has a second one


class Verdict(Enum):
    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"


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
    without influence on the verdict. primary: whether it has a separate test and a number of seeds
    chosen for it; all other findings share one level. earlier: whether it is only shown, because a
    second sample decides, which was specified before it was run.
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
    """A finding with its verdict and its adjusted p-value; None for a result without randomness.

    looks: the number of samples of the finding; its p-value counts `LOOKS` times in `in_family`
    """

    finding: Finding
    verdict: Verdict
    p: float | None
    looks: int = 1

    @property
    def wanted(self) -> str:
        """The number of seeds that would give a verdict at the measured effect and spread.

        It is empty if there is a verdict, and it ignores the adjustment for other findings.
        """
        effect = self.finding.effect
        if self.verdict is not Verdict.UNDECIDED or effect.spreadless:
            return ""
        return wanted(self.finding.expected.distance(effect.mean), effect.spread)

    def at(self, p: float | None) -> Verdict:
        """Return the verdict if its p-value is ``p``."""
        return self.verdict if p is None or p <= LEVEL else Verdict.UNDECIDED

    @property
    def of_looks(self) -> Verdict:
        """The verdict at `LEVEL` divided by the number of samples."""
        return self.at(None if self.p is None else self.p * self.looks)


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
    again = {finding.part for finding in findings if finding.earlier}
    out = []
    for place, (finding, (verdict, p)) in enumerate(zip(findings, tests, strict=True)):
        level = None if finding.effect.seeds == 1 else adjusted.get(place, p)
        looks = LOOKS if finding.part in again else 1
        judged = Judged(finding, verdict, level, looks)
        out.append(replace(judged, verdict=judged.at(level)))
    return out


def parts(judged: Sequence[Judged]) -> dict[str, Verdict]:
    """Return the verdict on each part of a claim.

    One contradicted finding contradicts its part. A part is reproduced only if all of its findings
    are.
    """
    verdicts_of: dict[str, list[Verdict]] = {}
    for claim in judged:
        if not claim.finding.earlier:
            verdicts_of.setdefault(claim.finding.part, []).append(claim.verdict)
    worst_first = [Verdict.CONTRADICTED, Verdict.UNDECIDED, Verdict.REPRODUCED]
    return {part: min(verdicts, key=worst_first.index) for part, verdicts in verdicts_of.items()}


def primary_of(judged: Sequence[Judged]) -> Judged:
    return next(evidence for evidence in judged if evidence.finding.primary)


def in_family(primary: Mapping[int, Judged]) -> dict[int, tuple[Verdict, float]]:
    """Return verdict and p-value of each claim's ``primary`` finding, adjusted for all of them.

    The p-values are adjusted by Holm's method. A finding with a second sample was tested on two
    samples, each at half of the level.
    """
    random = {number: evidence for number, evidence in primary.items() if evidence.p is not None}
    adjusted = holm([(evidence.p or 0.0) * evidence.looks for evidence in random.values()])
    return {
        number: (evidence.at(p), p)
        for (number, evidence), p in zip(random.items(), adjusted, strict=True)
    }
