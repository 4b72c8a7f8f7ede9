"""Tuning: one search procedure, with the same budget of runs, for all arms of a study.

A candidate is one value for each tuned setting. The search has two stages:

1. Successive halving (Jamieson and Talwalkar 2016). Each combination of the listed values starts
   with the first two values of the ladder and one seed. After each round the better half of the
   combinations continues: each tries half and double its best value, until that lies between two
   others. Without a ladder there is one round.
2. More seeds. The best candidate, its two neighbours on the ladder and, if one is missing, the next
   best get further seeds, the same number for every arm of the study. A parabola in the logarithm
   of the rate is fitted through their three means; the rate at its vertex, clipped to the range of
   the three, is chosen. Without three rates, the lowest mean is chosen.

Studies recorded before this rule use that of `settle_earlier`.

With the rule ``tpe``, Optuna's tree-structured Parzen estimator (Bergstra et al. 2011) proposes all
candidates from lists and ranges, `ROUND` at a time and each with one seed.

The value of a run is its loss, or the cost at which it reaches a target; it is infinite if the run
diverged or never reaches the target.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from math import exp, inf, isfinite, log, sqrt
from statistics import fmean, stdev
from typing import Any, TypeVar

from sgp_runner.studies.candidates import (
    ROUND,
    WORST,
    Candidate,
    Score,
    Space,
    Trial,
    Tuned,
    by_candidate,
    halved,
    numbers_of,
    override,
    rate_of,
    with_rate,
)
from sgp_runner.studies.study_file import RATE, SEARCH_SEEDS

FIRST_SEED, MAX_SEEDS = SEARCH_SEEDS[0], len(SEARCH_SEEDS)  # of a candidate
FINALISTS = 3  # candidates that get further seeds
WIDTH = 2.0  # standard errors within which a candidate is a near-tie
T = TypeVar("T")


def climb(
    first: Sequence[float],
    ladder: Sequence[float],
    finished: Callable[[float], bool],
    score: Callable[[float], Any],
) -> tuple[float, ...]:
    """Return the values to try: ``first``, and more while the best value is at an edge.

    The values are consecutive on the increasing ``ladder``. The lowest score is best; ties go to
    the smaller value.
    """
    tried = sorted(first)
    while all(map(finished, tried)):
        place = ladder.index(min(tried, key=score))
        more = {ladder[max(0, place - 1)], *ladder[place + 1 : place + 2]} - set(tried)
        if not more:
            break
        tried = sorted([*tried, *more])
    return tuple(tried)


Search = Generator[list[Trial], Sequence[Score], Tuned]


def further_seeds(spaces: Iterable[Space], budget: int) -> int:
    """Return the number of further seeds of the best candidates, the same for all arms.

    They take at most half of the budget, and leave each arm the minimum its search needs.
    """
    least = max((space.least_budget for space in spaces), default=0)
    return max(0, min(budget // (2 * FINALISTS), (budget - least) // FINALISTS, MAX_SEEDS - 1))


def search(space: Space, budget: int, further: int = 0, earlier: bool = False) -> Search:
    """Yield rounds of runs, receive their scores, and return the result.

    The runs of all rounds together are at most ``budget``.

    further: number of further seeds of the best candidates
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
    finalists = finalists_of(
        [candidate for candidate in everything if isfinite(score(candidate).value)]
    )
    due = [
        Trial(candidate, FIRST_SEED + number)
        for number in range(1, further + 1)
        for candidate in finalists
    ]
    scores |= zip(due, (yield due) if due else (), strict=True)
    means = means_of(finalists or everything[:1], by_candidate(scores))
    lowest = min(means, key=lambda candidate: (means[candidate], candidate))
    chosen, expected = vertex(lowest, {candidate: mean.value for candidate, mean in means.items()})
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
    """Return `FINALISTS` of ``ordered``: the first, its neighbours by rate, and the next ones."""
    alike = [
        candidate
        for candidate in ordered
        if with_rate(candidate).others == with_rate(ordered[0]).others
    ]
    by_rate = sorted(alike, key=rate_of)
    place = by_rate.index(ordered[0]) if ordered else 0
    near = by_rate[max(0, place - 1) : place + 2]
    return [*dict.fromkeys([*ordered[:1], *near, *ordered])][:FINALISTS]


def means_of(
    candidates: Sequence[Candidate], scores: Mapping[Candidate, Sequence[Score]]
) -> dict[Candidate, Score]:
    return {
        candidate: Score(*map(fmean, zip(*scores[candidate], strict=True)))
        for candidate in candidates
    }


def vertex(best: Candidate, means: Mapping[Candidate, float]) -> tuple[Candidate, float]:
    """Return the candidate at the vertex of the parabola through three means, and its value.

    The parabola is in the logarithm of the rate; its vertex is clipped to the range of the three
    rates. Returns the ``best`` one if the three differ in other settings, or the parabola has no
    minimum.
    """
    others = with_rate(best).others
    three = {
        rate_of(candidate): y
        for candidate, y in means.items()
        if isfinite(y) and rate_of(candidate) > 0
    }
    if len(three) < FINALISTS or any(with_rate(candidate).others != others for candidate in means):
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
    """Choose by the rule of studies recorded before the rule of `search`.

    The better half of the candidates gets further seeds, one at a time; those that are worse than
    the best by `WIDTH` standard errors drop out. Of the others, the one with the smallest rate not
    at an edge wins.
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
    edges = {candidate for candidate in everything if RATE in edges_of(candidate, everything)}
    best_first = left if seeds > 1 else left[:1]
    chosen = min(best_first, key=lambda candidate: (candidate in edges, rate_of(candidate)))
    return result(chosen, scores, (RATE,) if chosen in edges else ())


def propose(space: Space, budget: int) -> Search:
    """Yield rounds of runs proposed by Optuna's sampler, and return the best, as `search`."""
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


def first_trials(
    space: Space, others: tuple[str, ...], scores: Mapping[Trial, Score]
) -> Iterable[Trial]:
    """Return the runs of one combination with the first seed that are certain to be needed."""
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
    """Return the keys of ``best`` whose numbers are the smallest or largest of those tried.

    A learning rate is compared with those tried with the same other settings.
    """
    out = []
    for key, value in numbers_of(best).items():
        tried = {
            numbers_of(candidate)[key]
            for candidate in candidates
            if key in numbers_of(candidate)
            and (key != RATE or with_rate(candidate).others == with_rate(best).others)
        }
        if len(tried) > 1 and value in (min(tried), max(tried)):
            out.append(key)
    return tuple(out)
