"""The verdict on a published gain: at the published settings, and with both arms searched.

A gain is the effect of the study's primary arm over its baseline, positive for better results. It
is shown if its two-sided p-value is at most 5 %, or 2.5 % after a second look at the results; it
lies within the margin if two one-sided tests (TOST) show this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sgp_runner.studies.comparisons import Compared
from sgp_runner.studies.conduct import Conducted
from sgp_runner.studies.measures import Measure
from sgp_runner.studies.power import WANTED, power
from sgp_runner.studies.statistics import LEVEL, Between, Interval
from sgp_runner.studies.study_file import StudyFile

GainVerdict: TypeAlias = Literal[
    "not replicated", "collapses", "attenuated", "survives", "reverses", "undecided"
]
PHRASES: Mapping[str, str] = {
    "not replicated": "is not replicated",
    "attenuated": "is attenuated",
    "undecided": "is undecided",
}
KEPT_SHARE = 0.5  # of the gain at transferred settings that a gain which survives has at least


@dataclass(frozen=True)
class Gain:
    """A gain at transferred settings and after a search; positive effects are better.

    margin: the smallest difference that matters
    level: level of a two-sided test; all looks at the results share 5 %
    unbracketed: the searched arms whose optimum lies at an edge of the tried values
    """

    measure: Measure
    transferred: Interval
    tuned: Interval
    margin: float
    unbracketed: tuple[str, ...] = ()
    level: float = 2 * LEVEL

    @property
    def verdict(self) -> GainVerdict:
        tuned = self.tuned.mean
        inside = is_inside(self.tuned, self.margin, self.level)
        shown = self.tuned.p <= self.level
        if shown and tuned < 0 and not inside:
            return "reverses"
        if not (self.transferred.p <= self.level and self.transferred.mean > 0):
            return "not replicated"
        if inside:
            return "collapses"
        if shown:
            return "survives" if tuned >= KEPT_SHARE * self.transferred.mean else "attenuated"
        return "undecided"

    @property
    def by_design(self) -> bool:
        """Whether the seeds detect a difference of the margin with a power below `WANTED`."""
        spread = self.tuned.spread
        return spread > 0 and power(self.margin, spread, self.tuned.seeds) < WANTED

    def __str__(self) -> str:
        verdict = PHRASES.get(self.verdict, self.verdict)
        verdict += " by design" if self.verdict == "undecided" and self.by_design else ""
        marks = f"; unbracketed: {', '.join(self.unbracketed)}" if self.unbracketed else ""
        at, after = (signed(self.measure, effect) for effect in (self.transferred, self.tuned))
        return f"The gain {verdict}: {at} at the published settings, {after} tuned{marks}."


def signed(measure: Measure, effect: Interval) -> str:
    """Return an effect with its interval; positive is better."""
    mean, low, high = (
        f"{'-' if value < 0 else '+'}{measure.difference(value, value is effect.mean)}"
        for value in (effect.mean, effect.low, effect.high)
    )
    return f"{mean} [{low}, {high}]"


def is_inside(effect: Interval, margin: float, level: float) -> bool:
    """Return whether two one-sided tests show that an effect is smaller than the margin."""
    return Between(-margin, margin).inside(effect) <= level / 2


def gain_of(done: Conducted, first: Compared) -> Gain | None:
    """Return the gain of a study with a margin and published settings of both compared arms.

    first: the first measure on the first cluster
    """
    study = done.study
    names = [study.transferred.get(name) for name in (study.primary, study.baseline)]
    if None in names or study.matters is None:
        return None
    at = better(first.measure, first.effect(*map(str, names)))
    edges = tuple(arm.arm.name for arm in done.arms if arm.tuned.at_the_edge)
    level = first.comparisons[study.primary].level
    return Gain(first.measure, at, tuned_effect(study, first), study.matters, edges, level)


def tuned_effect(study: StudyFile, first: Compared) -> Interval:
    """Return the effect of the primary arm over the baseline, both searched; positive is better."""
    return better(first.measure, first.comparisons[study.primary].effect)


def better(measure: Measure, effect: Interval) -> Interval:
    """Return an effect with its sign adjusted so that positive is better."""
    return effect.mirrored if measure.less_is_better else effect
