"""Tuning: one search procedure, with the same budget of runs, for all arms of a study.

A candidate is one value for each tuned setting. The search has two stages:

1. Successive halving (Jamieson and Talwalkar 2016). Every combination of the listed values starts
   with the first two values of the ladder and one seed. After each round the better half of the
   combinations continues: each tries half and double its best value, until that lies between two
   others. Without a ladder there is one round.
2. More seeds. The best candidate, its two neighbours on the ladder and, where one lacks, the next
   best get further seeds, as many for every arm of the study. A parabola in the logarithm of the
   rate through their three means has its vertex at the rate that is chosen, at most at the ends of
   the three. Without three rates the lowest mean is chosen.

Studies that were set down before this rule have that of `settle_earlier`.

With the rule ``tpe``, Optuna's tree-structured Parzen estimator (Bergstra et al. 2011) proposes all
candidates from lists and ranges, `ROUND` at a time and each with one seed.

The value of a run is its loss, or
the cost at which it reaches a target, and is infinite if it diverged or never reaches the target.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException

from sgp_runner.report.read.naming import short_key
from sgp_runner.studies.study_file import EXAMPLES, RATE, SEARCH_SEEDS
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FIRST_SEED, MAX_SEEDS = SEARCH_SEEDS[0], len(SEARCH_SEEDS)  # of a candidate
FINALISTS = 3  # candidates that get further seeds
WIDTH = 2.0  # standard errors within which a candidate is a near-tie
ROUND = 4  # candidates that `propose` asks for before it learns their values
T = TypeVar("T")


def doublings(middle: float, times: int = 10) -> tuple[float, ...]:
    """Return ``middle``, its first ``times`` doublings and its first ``times`` halvings."""
    return tuple(middle * 2.0**power for power in range(-times, times + 1))


def climb(
    first: Sequence[float],
    ladder: Sequence[float],
    finished: Callable[[float], bool],
    score: Callable[[float], Any],
) -> tuple[float, ...]:
    """Return the values to try: ``first``, and more as long as the best value is at an edge.

    The values are neighbours on the increasing ``ladder``. The lowest score is best; of equal
    scores, the smaller value is best.
    """
    tried = sorted(first)
    while all(map(finished, tried)):
        place = ladder.index(min(tried, key=score))
        more = {ladder[max(0, place - 1)], *ladder[place + 1 : place + 2]} - set(tried)
        if not more:
            break
        tried = sorted([*tried, *more])
    return tuple(tried)


@dataclass(frozen=True, order=True)
class Candidate:
    """Values of the tuned settings.

    value: the value on the ladder; None without a ladder
    others: the other settings, as overrides
    """

    value: float | None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """A run of a search."""

    candidate: Candidate
    seed: int


class Score(NamedTuple):
    """The result of a run of a search; less is better.

    value: the loss, or the cost of the target; infinite if the run diverged or never reaches it
    loss: the loss, which orders equal values
    """

    value: float
    loss: float


WORST = Score(inf, inf)


@dataclass(frozen=True)
class Space:
    """The candidates of an arm.

    key: the setting with a ladder; empty: none
    first: the values of the ladder that are tried first
    combinations: combinations of the other settings, as overrides
    ranges: for the rule ``tpe`` the distribution of each key; then ``combinations`` is an example
    """

    key: str = ""
    first: tuple[float, ...] = ()
    combinations: tuple[tuple[str, ...], ...] = ((),)
    ranges: Mapping[str, BaseDistribution] = field(default_factory=dict)

    @property
    def ladder(self) -> tuple[float, ...]:
        return doublings(self.first[0]) if self.first else ()

    def overrides(self, candidate: Candidate) -> tuple[str, ...]:
        """Return the overrides that set the values of a candidate."""
        rate = (f"{self.key}={candidate.value:g}",) if candidate.value is not None else ()
        return (*candidate.others, *rate)

    @property
    def size(self) -> int:
        """The number of candidates that are tried at first; 1: nothing is searched."""
        return ROUND if self.ranges else len(self.combinations) * max(1, len(self.first))

    @property
    def least_budget(self) -> int:
        """The number of runs of a search in which each ladder ends as early as it can."""
        if self.size == 1:
            return 0
        if not self.first:
            return 1 if self.ranges else self.size
        return self.size + 2 * halved(len(self.combinations))


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    chosen: the candidate that the arm runs with
    losses: the loss of each run; infinite if it diverged
    edges: the searched numbers beyond whose tried values a better one may lie
    values: the value of each run, by which the search decides; empty: its loss
    expected: the value of a choice between the tried ones, on the parabola
    """

    chosen: Candidate
    losses: Mapping[Trial, float] = field(default_factory=dict)
    edges: tuple[str, ...] = ()
    values: Mapping[Trial, float] = field(default_factory=dict)
    expected: float = inf

    @property
    def at_the_edge(self) -> bool:
        return bool(self.edges)

    @property
    def runs(self) -> int:
        """The number of runs of the search."""
        return len(self.losses)

    @property
    def score(self) -> float:
        """The value of the choice: its mean, or that on the parabola between other rates."""
        scores = self.scores()
        return fmean(scores[self.chosen]) if self.chosen in scores else self.expected

    def scores(self) -> dict[Candidate, list[float]]:
        """Return the values of each candidate, one for each of its seeds."""
        return by_candidate(self.values or self.losses)


def halved(count: int) -> int:
    return -(-count // 2)


def by_candidate(results: Mapping[Trial, T]) -> dict[Candidate, list[T]]:
    out: dict[Candidate, list[T]] = {}
    for trial, result in results.items():
        out.setdefault(trial.candidate, []).append(result)
    return out


Search = Generator[list[Trial], Sequence[Score], Tuned]


def further_seeds(spaces: Iterable[Space], budget: int) -> int:
    """Return the number of further seeds of the best candidates, the same for all arms.

    They take at most half of the budget, and leave each arm what its search needs at least.
    """
    least = max((space.least_budget for space in spaces), default=0)
    return max(0, min(budget // (2 * FINALISTS), (budget - least) // FINALISTS, MAX_SEEDS - 1))


def search(space: Space, budget: int, further: int = 0, earlier: bool = False) -> Search:
    """Yield rounds of runs, receive their scores, and return the result.

    The runs of all rounds together are at most ``budget``.

    further: seeds of the best candidates beside the first
    earlier: whether the rule is that of `settle_earlier`
    """
    if space.ranges:
        return (yield from propose(space, budget))
    if space.size == 1:
        value = space.first[0] if space.first else None
        return Tuned(Candidate(value, space.combinations[0]))
    scores: dict[Trial, Score] = {}

    def score(candidate: Candidate) -> Score:
        return scores.get(Trial(candidate, FIRST_SEED), WORST)

    alive = list(space.combinations)
    while due := [
        trial
        for others in alive
        for trial in first_trials(space, others, scores)
        if trial not in scores
    ][: budget - FINALISTS * further - len(scores)]:
        scores |= zip(due, (yield due), strict=True)
        tried = by_candidate(scores)
        best = {
            others: min(
                map(score, (candidate for candidate in tried if candidate.others == others)),
                default=WORST,
            )
            for others in alive
        }
        alive = sorted(alive, key=best.__getitem__)[: halved(len(alive))]
    everything = sorted(by_candidate(scores), key=lambda candidate: (score(candidate), candidate))
    if earlier:
        return (yield from settle_earlier(everything, scores, budget))
    finalists = finalists_of([each for each in everything if isfinite(score(each).value)])
    due = [
        Trial(candidate, FIRST_SEED + number)
        for number in range(1, further + 1)
        for candidate in finalists
    ]
    scores |= zip(due, (yield due) if due else (), strict=True)
    means = means_of(finalists or everything[:1], by_candidate(scores))
    lowest = min(means, key=lambda candidate: (means[candidate], candidate))
    chosen, expected = vertex(lowest, {each: mean.value for each, mean in means.items()})
    return result(chosen, scores, edges_of(lowest, everything), expected)


def result(
    chosen: Candidate,
    scores: Mapping[Trial, Score],
    edges: tuple[str, ...] = (),
    expected: float = inf,
) -> Tuned:
    losses = {trial: score.loss for trial, score in scores.items()}
    values = {trial: score.value for trial, score in scores.items()}
    return Tuned(chosen, losses, edges, values, expected)


def finalists_of(ordered: Sequence[Candidate]) -> list[Candidate]:
    """Return the first of ``ordered``, its neighbours by rate, and the next ones: `FINALISTS`."""
    alike = [each for each in ordered if with_rate(each).others == with_rate(ordered[0]).others]
    by_rate = sorted(alike, key=rate_of)
    place = by_rate.index(ordered[0]) if ordered else 0
    near = by_rate[max(0, place - 1) : place + 2]
    return [*dict.fromkeys([*ordered[:1], *near, *ordered])][:FINALISTS]


def rate_of(candidate: Candidate) -> float:
    return with_rate(candidate).value or 0.0


def means_of(
    candidates: Sequence[Candidate], scores: Mapping[Candidate, Sequence[Score]]
) -> dict[Candidate, Score]:
    return {each: Score(*map(fmean, zip(*scores[each], strict=True))) for each in candidates}


def vertex(best: Candidate, means: Mapping[Candidate, float]) -> tuple[Candidate, float]:
    """Return the candidate at the vertex of the parabola through three means, and its value there.

    The parabola is in the logarithm of the rate, and its vertex at most at the ends of the three.
    Returns the ``best`` one if the three differ in other settings, or the parabola has no minimum.
    """
    others = with_rate(best).others
    three = {rate_of(each): y for each, y in means.items() if isfinite(y) and rate_of(each) > 0}
    if len(three) < FINALISTS or any(with_rate(each).others != others for each in means):
        return best, means[best]
    (x0, y0), (x1, y1), (x2, y2) = ((log(rate), three[rate]) for rate in sorted(three))
    slope = (y1 - y0) / (x1 - x0)
    bend = ((y2 - y1) / (x2 - x1) - slope) / (x2 - x0)
    if not bend > 0:
        return best, means[best]
    x = min(max((x0 + x1) / 2 - slope / (2 * bend), x0), x2)
    rate = float(f"{exp(x):.3g}")
    chosen = Candidate(rate, others)
    if best.value is None:
        chosen = Candidate(None, (*others, f"{RATE}={rate:g}"))
    return chosen, y0 + (x - x0) * (slope + bend * (x - x1))


def settle_earlier(
    everything: Sequence[Candidate], scores: dict[Trial, Score], budget: int
) -> Search:
    """Choose by the rule of studies that were set down before that of `search`.

    The better half of the candidates gets further seeds, one at a time; those that are worse than
    the best by `WIDTH` standard errors drop out. Of the others, the smallest rate inside wins.
    """
    left = [
        candidate
        for candidate in everything[: max(2, halved(len(everything)))]
        if isfinite(scores[Trial(candidate, FIRST_SEED)].value)
    ]
    left = left or [*everything[:1]]
    seeds = 1
    while 1 < len(left) <= budget - len(scores) and seeds < MAX_SEEDS:
        seeds += 1
        due = [Trial(candidate, FIRST_SEED + seeds - 1) for candidate in left]
        scores |= zip(due, (yield due), strict=True)
        left = near_ties(left, by_candidate(scores))
    edges = {each for each in everything if RATE in edges_of(each, everything)}
    best_first = left if seeds > 1 else left[:1]
    chosen = min(best_first, key=lambda candidate: (candidate in edges, rate_of(candidate)))
    return result(chosen, scores, (RATE,) if chosen in edges else ())


def propose(space: Space, budget: int) -> Search:
    """Yield rounds of runs that Optuna's sampler proposes, and return the best; as `search`."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=FIRST_SEED, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    scores: dict[Trial, Score] = {}
    for asked in range(0, budget, ROUND):
        proposals = [study.ask(dict(space.ranges)) for _ in range(min(ROUND, budget - asked))]
        trials = [
            Trial(Candidate(None, tuple(map(override, proposal.params.items()))), FIRST_SEED)
            for proposal in proposals
        ]
        due = [trial for trial in dict.fromkeys(trials) if trial not in scores]
        scores |= zip(due, (yield due), strict=True)
        for proposal, trial in zip(proposals, trials, strict=True):
            study.tell(proposal, scores[trial].value)
    best = min(scores, key=lambda trial: (scores[trial], trial.candidate))
    return result(best.candidate, scores)


def distribution(key: str, text: str) -> tuple[object, BaseDistribution]:
    """Return the first of the values ``text``, in Hydra's notation, and Optuna's distribution."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    try:
        parsed = OverridesParser.create().parse_override(f"{key}={text}")
        values: Any = parsed.value()
        if not isinstance(values, IntervalSweep):
            listed = [*parsed.sweep_string_iterator()] if parsed.is_sweep_override() else [text]
            return listed[0], CategoricalDistribution(listed)
        whole = isinstance(values.start, int) and isinstance(values.end, int)
        kind: Any = IntDistribution if whole else FloatDistribution
        return values.start, kind(values.start, values.end, log="log" in values.tags)
    except (HydraException, ValueError) as error:
        raise ConfigError(
            f"tune.{key}", f"'{text}' cannot be searched: write {EXAMPLES['tpe']}."
        ) from error


def override(setting: tuple[str, object]) -> str:
    """Return a proposed value as an override; a number has four digits."""
    key, value = setting
    return f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"


def first_trials(
    space: Space, others: tuple[str, ...], scores: Mapping[Trial, Score]
) -> Iterable[Trial]:
    """Return the runs of one combination with the first seed that are known to be needed."""
    if not space.first:
        return [Trial(Candidate(None, others), FIRST_SEED)]

    def trial(value: float) -> Trial:
        return Trial(Candidate(value, others), FIRST_SEED)

    values = climb(
        space.first,
        space.ladder,
        lambda value: trial(value) in scores,
        lambda value: scores[trial(value)],
    )
    return map(trial, values)


def near_ties(
    candidates: Sequence[Candidate], scores: Mapping[Candidate, Sequence[Score]]
) -> list[Candidate]:
    """Return the candidate with the lowest mean value, and its near-ties, the best first.

    Each has the same seeds, at least two.
    """
    means = means_of(candidates, scores)
    ordered = sorted(candidates, key=lambda candidate: (means[candidate], candidate))
    best = ordered[0]
    if not isfinite(means[best].value):
        return ordered[:1]

    def tied(other: Candidate) -> bool:
        if not isfinite(means[other].value):
            return False
        pairs = zip(scores[other], scores[best], strict=True)
        differences = [a.value - b.value for a, b in pairs]
        return fmean(differences) <= WIDTH * stdev(differences) / sqrt(len(differences))

    return [candidate for candidate in ordered if tied(candidate)]


def edges_of(best: Candidate, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Return the numbers of ``best`` that are the least or the greatest of those that were tried.

    A learning rate is compared with those that were tried with the same other settings.
    """
    out = []
    for key, value in numbers_of(best).items():
        tried = {
            numbers_of(each)[key]
            for each in candidates
            if key in numbers_of(each)
            and (key != RATE or with_rate(each).others == with_rate(best).others)
        }
        if len(tried) > 1 and value in (min(tried), max(tried)):
            out.append(key)
    return tuple(out)


def numbers_of(candidate: Candidate) -> dict[str, float]:
    """Return the numbers among the values of a candidate; ``algo.sgp.tau`` is ``algo.tau``."""
    rated = with_rate(candidate)
    numbers = {} if rated.value is None else {RATE: rated.value}
    for key, _, text in (word.partition("=") for word in rated.others):
        with suppress(ValueError):
            numbers[f"{key.partition('.')[0]}.{short_key(key)}"] = float(text)
    return numbers


def with_rate(candidate: Candidate) -> Candidate:
    """Return a candidate whose learning rate, also one of a list, is its value."""
    values = dict(word.split("=", 1) for word in candidate.others)
    rate = values.pop(RATE, None) if candidate.value is None else None
    if rate is None:
        return candidate
    return Candidate(float(rate), tuple(f"{key}={text}" for key, text in values.items()))
