"""Tuning: one search procedure, with the same budget of runs, for all arms of a study.

A candidate is one value for each tuned setting. The search has two stages:

1. Successive halving (Jamieson and Talwalkar 2016). Every combination of the listed values starts
   with the first two values of the ladder and one seed. After each round the better half of the
   combinations continues: each tries half and double its best value, until that lies between two
   others. Without a ladder there is one round.
2. Near-ties. The better half of all candidates gets further seeds, one at a time. Candidates that
   are worse than the best by two standard errors of the paired difference drop out. Among those
   that are left, the smallest learning rate that lies between two others is chosen.

The search ends early if the next seed would exceed the budget.

With the rule ``tpe``, Optuna's tree-structured Parzen estimator (Bergstra et al. 2011) proposes all
candidates from lists and ranges, `ROUND` at a time and each with one seed.

The value of a run is its loss, or
the cost at which it reaches a target, and is infinite if it diverged or never reaches the target.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException

from sgp_runner.studies.study_file import EXAMPLES, RATE, SEARCH_SEEDS
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FIRST_SEED, MAX_SEEDS = SEARCH_SEEDS[0], len(SEARCH_SEEDS)  # of a candidate
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
    at_the_edge: whether a learning rate beyond the tried ones may be better
    tied: whether other candidates are near-ties of the chosen one
    values: the value of each run, by which the search decides; empty: its loss
    """

    chosen: Candidate
    losses: Mapping[Trial, float] = field(default_factory=dict)
    at_the_edge: bool = False
    tied: bool = False
    values: Mapping[Trial, float] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """The number of runs of the search."""
        return len(self.losses)

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


def search(space: Space, budget: int) -> Search:
    """Yield rounds of runs, receive their scores, and return the result.

    The runs of all rounds together are at most ``budget``.
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
    ][: budget - len(scores)]:
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
    left = [
        candidate
        for candidate in everything[: max(2, halved(len(everything)))]
        if isfinite(score(candidate).value)
    ]
    left = left or everything[:1]
    seeds = 1
    while 1 < len(left) <= budget - len(scores) and seeds < MAX_SEEDS:
        seeds += 1
        due = [Trial(candidate, FIRST_SEED + seeds - 1) for candidate in left]
        scores |= zip(due, (yield due), strict=True)
        left = near_ties(left, by_candidate(scores))
    edges = set(at_edges(everything))
    best_first = left if seeds > 1 else left[:1]
    chosen = min(
        best_first, key=lambda candidate: (candidate in edges, with_rate(candidate).value or 0.0)
    )
    return Tuned(
        chosen,
        {trial: result.loss for trial, result in scores.items()},
        chosen in edges,
        seeds > 1 and len(left) > 1,
        {trial: result.value for trial, result in scores.items()},
    )


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
    return Tuned(
        best.candidate,
        {trial: result.loss for trial, result in scores.items()},
        values={trial: result.value for trial, result in scores.items()},
    )


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
    means = {
        candidate: Score(*map(fmean, zip(*scores[candidate], strict=True)))
        for candidate in candidates
    }
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


def at_edges(candidates: Sequence[Candidate]) -> Iterable[Candidate]:
    """Yield the candidates at the ends of the tried rates, for each combination of the others."""
    tried: dict[tuple[str, ...], dict[float, Candidate]] = {}
    for candidate in candidates:
        rated = with_rate(candidate)
        if rated.value is not None:
            tried.setdefault(rated.others, {})[rated.value] = candidate
    for rates in tried.values():
        if len(rates) > 1:
            yield rates[min(rates)]
            yield rates[max(rates)]


def with_rate(candidate: Candidate) -> Candidate:
    """Return a candidate whose learning rate, also one of a list, is its value."""
    values = dict(word.split("=", 1) for word in candidate.others)
    rate = values.pop(RATE, None) if candidate.value is None else None
    if rate is None:
        return candidate
    return Candidate(float(rate), tuple(f"{key}={text}" for key, text in values.items()))
