"""Comparisons of the arms of a study with its baseline, their tests, and the answer.

The primary comparison is tested alone at 5 %; the p-values of all others are adjusted by Holm's
method. Intervals are not adjusted. Arms with diverged runs are compared by the ranks of their
quality.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import inf, isclose
from statistics import fmean, median
from typing import Literal, TypeAlias

from sgp_runner.studies.conduct import Conducted
from sgp_runner.studies.measures import Measure, Pairing, RunResult, pairing, reached_by
from sgp_runner.studies.power import wanted
from sgp_runner.studies.statistics import (
    LEVEL,
    MIN_RANKED,
    Between,
    Interval,
    Reached,
    exactly,
    holm,
    paired,
    ranked,
    ranks,
)
from sgp_runner.utils.units import counted

PRAISE = {  # by the measure's cost, of one arm and of several
    "time": ("is fastest", "are fastest"),
    "bytes": ("sends least", "send least"),
    "": ("is best", "are best"),
}
FACTORS = {"time": "faster", "bytes": "less"}
MAX_NAMED = 3  # arms that a headline calls best
ROUNDING = 1e-5  # relative, of a loss or an accuracy after training in float32
WORST_COST = 1e100  # of a diverged run, for ranks: above every cost, and its square is finite
Verdict = Literal["better", "worse", "equal", "undecided"]
Effect: TypeAlias = Callable[[str, str], Interval]


@dataclass(frozen=True)
class Comparison:
    """Comparison of an arm with the baseline.

    p: two-sided, adjusted unless the comparison is primary; None for a result without randomness
    equal: the p-value that the difference is smaller than what matters (TOST), adjusted like p;
        None: not tested
    level: the level of a two-sided test
    rounding: whether the two sides are equal up to rounding for every seed
    """

    arm: str
    effect: Interval
    measure: Measure
    p: float | None
    primary: bool
    equal: float | None = None
    level: float = 2 * LEVEL
    rounding: bool = False

    @property
    def verdict(self) -> Verdict:
        effect = self.effect.mean
        if self.rounding:
            return "equal"
        if self.p is None or self.p <= self.level:
            if effect == 0:  # for every seed; of a target, neither side reaches it
                return "equal" if self.measure.target is None else "undecided"
            return "better" if (effect < 0) is self.measure.less_is_better else "worse"
        return "equal" if self.equal is not None and self.equal <= self.level / 2 else "undecided"

    @property
    def wanted(self) -> str:
        """The number of seeds that would suffice at the measured effect and spread."""
        if self.verdict != "undecided" or self.effect.spreadless or self.effect.mean == 0:
            return ""
        return wanted(abs(self.effect.mean), self.effect.spread)


@dataclass(frozen=True)
class Compared:
    """One measure on one cluster.

    cluster: number of the cluster
    values: for each arm, its values by seed, as in its comparison with the baseline; for the
        baseline, as in the primary comparison
    reached: for each arm, when it reaches the target; empty without a target
    ranks: for each arm, its rank; arms that tests do not separate can share a rank
    comparisons: for each arm except the baseline, its comparison
    by_cluster: whether the values depend on the cluster
    effect: returns the difference of two arms, by their names
    diverged: names of the arms whose runs all diverged
    outliers: names of the arms with diverged runs, whose values are compared by ranks
    """

    measure: Measure
    cluster: int
    values: Mapping[str, tuple[float, ...]]
    reached: Mapping[str, Reached]
    ranks: Mapping[str, int]
    comparisons: Mapping[str, Comparison]
    by_cluster: bool
    effect: Effect
    diverged: Collection[str] = ()
    outliers: Collection[str] = ()

    def centre(self, name: str) -> float:
        """Return the mean of an arm over the seeds; with diverged runs, the median."""
        return (median if name in self.outliers else fmean)(self.values[name])

    def text(self, name: str) -> str:
        """Format the mean of an arm; ``never`` if no run reaches the target."""
        if self.reached and not self.reached[name].count:
            return "never"
        if name in self.diverged and not self.measure.cost:
            return "diverged"
        return self.measure.text(self.centre(name))

    def share(self, name: str) -> str:
        """Return how many runs reach the target; empty if all runs of all arms do."""
        if all(reached.count == len(reached.at) for reached in self.reached.values()):
            return ""
        reached = self.reached[name]
        return f"{reached.count} of {len(reached.at)} reach it"

    def order(self, name: str) -> tuple[int, float]:
        """Return a sort key for arms: those that reach the target in more runs come first."""
        missing = len(self.values[name]) - self.reached[name].count if self.reached else 0
        return missing, (1 if self.measure.less_is_better else -1) * self.centre(name)

    @property
    def best(self) -> str:
        return min(self.values, key=self.order)


def compare(done: Conducted, looks: int = 1, by_ranks: bool = True) -> list[Compared]:
    """Return all comparisons, beginning with the first measure on the first cluster.

    looks: number of looks at the results, which share the level of 5 %
    by_ranks: whether arms with diverged runs are compared by the ranks of their quality, which
        takes six seeds
    """
    study = done.study
    by_ranks &= len(done.seeds) >= MIN_RANKED
    outliers = {arm.arm.name for arm in done.arms if by_ranks and arm.diverged}
    places = [
        (measure, cluster)
        for measure in study.measures
        for cluster in range(len(study.clusters) if measure.cost else 1)
    ]
    columns = []
    for measure, cluster in places:
        runs = {arm.arm.name: arm.runs[cluster] for arm in done.arms}
        pair = pairing(runs, measure)
        partners = dict.fromkeys(runs, study.baseline) | {study.baseline: study.primary}
        values = {name: pair(name, other)[0] for name, other in partners.items()}
        columns.append((measure, cluster, runs, pair, values))
    first = {measure: values for measure, *_, values in reversed(columns)}
    differing = {measure for measure, *_, values in columns if values != first[measure]}
    columns = [column for column in columns if column[1] == 0 or column[0] in differing]
    effects = {
        (place, arm.name): difference(pair, measure, outliers, arm.name, study.baseline)
        for place, (measure, _, _, pair, _) in enumerate(columns)
        for arm in study.arms
        if arm.name != study.baseline
    }
    matters = {key: study.matters if key[0] == 0 else None for key in effects}
    adjusted, equal = (
        adjust(p_values, (0, study.primary))
        for p_values in (
            {key: p_of(effect) for key, effect in effects.items()},
            {key: equivalence(effect, matters[key]) for key, effect in effects.items()},
        )
    )
    return [
        Compared(
            measure,
            cluster,
            values,
            reached(runs, measure),
            ranks([*runs], partial(lower, pair, measure, outliers), 2 * LEVEL / looks),
            {
                name: Comparison(
                    name,
                    effect,
                    measure,
                    adjusted[where, name],
                    (where, name) == (0, study.primary),
                    equal[where, name],
                    2 * LEVEL / looks,
                    same_to_rounding(runs[name], runs[study.baseline], measure),
                )
                for (where, name), effect in effects.items()
                if where == place
            },
            measure in differing,
            partial(difference, pair, measure, outliers),
            [arm.arm.name for arm in done.arms if arm.diverged == len(arm.runs[0])],
            set() if measure.cost else outliers,
        )
        for place, (measure, cluster, runs, pair, values) in enumerate(columns)
    ]


def same_to_rounding(
    ours: Sequence[RunResult], theirs: Sequence[RunResult], measure: Measure
) -> bool:
    """Return whether a quality is equal up to rounding for every seed.

    Runs that sum in different orders differ by rounding errors, which training amplifies. Diverged
    runs count as equal guesses and are not compared.
    """
    if measure.cost or any(run.job.diverged for run in (*ours, *theirs)):
        return False
    return all(
        isclose(a.value(measure), b.value(measure), rel_tol=ROUNDING)
        for a, b in zip(ours, theirs, strict=True)
    )


def difference(
    pair: Pairing, measure: Measure, outliers: Set[str], ours: str, theirs: str
) -> Interval:
    """Return the difference; a cost that is the same for all seeds, such as time, is exact."""
    samples = pair(ours, theirs)
    if inf in chain(*samples):  # a diverged run has no cost
        return Interval(inf if inf in samples[0] else -inf, -inf, inf, len(samples[0]))
    effect = test_of(measure, outliers, ours, theirs)(*samples)
    return exactly(effect.mean) if effect.spreadless and measure.cost else effect


def adjust(
    p_values: Mapping[tuple[int, str], float | None], primary: tuple[int, str]
) -> dict[tuple[int, str], float | None]:
    """Return the p-values, all but the primary one adjusted by Holm's method."""
    family = {key: p for key, p in p_values.items() if p is not None and key != primary}
    return {**p_values, **dict(zip(family, holm([*family.values()]), strict=True))}


def p_of(effect: Interval) -> float | None:
    """Return the p-value of a difference; None without randomness."""
    if effect.seeds == 1:
        return None
    return 1.0 if abs(effect.mean) == inf else effect.p


def equivalence(effect: Interval, matters: float | None) -> float | None:
    if matters is None or effect.seeds == 1 or abs(effect.mean) == inf:
        return None
    return Between(-matters, matters).inside(effect)


def reached(runs: Mapping[str, Sequence[RunResult]], measure: Measure) -> dict[str, Reached]:
    if measure.target is None:
        return {}
    return {name: reached_by(results, measure) for name, results in runs.items()}


def lower(pair: Pairing, measure: Measure, outliers: Set[str], ours: str, theirs: str) -> Interval:
    """Return the difference, signed so that lower is better; a run without a cost is worst."""
    samples = ([min(v, WORST_COST) for v in sample] for sample in pair(ours, theirs))
    effect = test_of(measure, outliers, ours, theirs)(*samples)
    return effect if measure.less_is_better else effect.mirrored


def test_of(
    measure: Measure, outliers: Set[str], *arms: str
) -> Callable[[Sequence[float], Sequence[float]], Interval]:
    """Return Student's test, or a rank test for the quality of arms with diverged runs."""
    return ranked if outliers & {*arms} and not measure.cost else paired


def divergence(done: Conducted, first: Compared) -> str:
    """Return a sentence about the arms with diverged runs; empty if there are none."""
    counts = [(arm.arm.name, arm.diverged, len(arm.runs[0])) for arm in done.arms if arm.diverged]
    runs = (f"{count} of {seeds} runs of {name}" for name, count, seeds in counts)
    how = "; these arms have medians and are compared by ranks" if first.outliers else ""
    return f"Diverged: {', '.join(runs)}{how}." if counts else ""


def answer(done: Conducted, first: Compared, cluster: str, clock: str) -> str:
    """Return the answer to the question, and a sentence about diverged runs.

    The arguments are those of `conclusion`.
    """
    return " ".join(
        filter(None, (conclusion(done, first, cluster, clock), divergence(done, first)))
    )


def conclusion(done: Conducted, first: Compared, cluster: str, clock: str) -> str:
    """Return the answer to the question as a sentence.

    first: the first measure on the first cluster
    cluster: name of the cluster
    clock: simulated | wall
    """
    study, measure = done.study, first.measure
    ours, theirs = (
        f"{first.text(name)} ({share})" if (share := first.share(name)) else first.text(name)
        for name in (study.primary, study.baseline)
    )
    where = f" on {cluster}" if cluster and first.by_cluster else ""
    if len(done.arms) == 1:
        (arm,) = done.arms
        settings = f" with {' '.join(arm.settings)}" if arm.settings else ""
        return f"{study.primary}{settings}: {measure.on(clock)}{where} {ours}."
    comparison = first.comparisons[study.primary]
    effect = comparison.effect
    what = f"{measure.on(clock)}{where}: {ours} against {theirs}"
    sides = f"{study.primary} and {study.baseline}"
    if diverged := [name for name in (study.primary, study.baseline) if inf in first.values[name]]:
        return f"Undecided: runs of {' and '.join(diverged)} diverged ({what})."
    by = measure.difference(effect.mean)
    certain = certainty(comparison)
    match comparison.verdict:
        case "better" | "worse":
            return (
                f"{study.primary} is {comparison.verdict} than {study.baseline} by {by} in {what}"
                f"{certain}."
            )
        case "equal" if comparison.rounding:
            return f"Equal up to rounding: {sides} in {what}{certain}."
        case "equal":
            return f"{sides} differ by less than what matters in {what}{certain}."
    wanted = f"; {comparison.wanted} would tell" if comparison.wanted else ""
    return f"Undecided: {sides} are not told apart in {what}{certain}{wanted}."


def headline(done: Conducted, first: Compared, cluster: str, clock: str) -> str:
    """Return a sentence on the best arms, such as ``SGP is fastest: 27 s to a loss of 0.2, ...``.

    The arguments are those of `answer`. Arms that tests do not separate from the best share first
    place.
    """
    names = sorted(first.values, key=first.order)
    best = [name for name in names if first.ranks[name] == 1]
    reaching = [name for name in best if first.text(name) != "never"]
    measure, baseline = first.measure, done.study.baseline
    where = f" on {cluster}" if cluster and first.by_cluster else ""
    if len(names) == 1:
        return "A study of one arm compares nothing."
    if len(best) == len(names):
        return f"Tests of all pairs separate no arm from the best in {measure.on(clock)}{where}."
    best = reaching or best[:1]
    value = " and ".join(map(first.text, best if len(best) <= MAX_NAMED else best[:1]))
    value += " of simulated time" if measure.cost == "time" and clock == "simulated" else ""
    value += f" to {measure.goal}" if measure.target is not None else ""
    if len(best) > MAX_NAMED:
        praise = PRAISE[measure.cost][0]
        return f"{best[0]} {praise}: {value}{where}; {len(best) - 1} others share its rank."
    sentence = f"{' and '.join(best)} {PRAISE[measure.cost][len(best) > 1]}: {value}{where}"
    if baseline in best or not measure.cost or first.order(baseline)[0] or first.order(best[0])[0]:
        return f"{sentence}."
    factor = fmean(first.values[baseline]) / fmean(first.values[best[0]])
    return f"{sentence}, {factor:.2g} times {FACTORS[measure.cost]} than {baseline}."


def certainty(comparison: Comparison) -> str:
    """Return the interval and the p-value in parentheses."""
    effect, measure = comparison.effect, comparison.measure
    if comparison.p is None:
        return " (the same for every seed)"
    return (
        f" (difference {between(measure, effect)} with 95 % confidence, p {p_text(comparison.p)}, "
        f"{counted(effect.seeds, 'seed')})"
    )


def signed(measure: Measure, value: float, unit: bool = True) -> str:
    return f"{'-' if value < 0 else '+'}{measure.difference(value, unit)}"


def between(measure: Measure, effect: Interval) -> str:
    """Return the ends of an interval as text; the unit of a quality appears once."""
    return f"{signed(measure, effect.low, unit=False)} to {signed(measure, effect.high)}"


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.2g}"
