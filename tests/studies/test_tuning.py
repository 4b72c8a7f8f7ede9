"""Searches: the ladder, successive halving, near-ties and the budget."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log2
from random import Random
from statistics import fmean

import pytest

from sgp_runner.studies.candidates import (
    Candidate,
    Score,
    Space,
    Trial,
    Tuned,
    distribution,
    doublings,
)
from sgp_runner.studies.tuning import climb, further_seeds, search


def finish(
    space: Space,
    budget: int,
    loss: Callable[[Trial], float | Score],
    further: int = 0,
    earlier: bool = False,
) -> tuple[Tuned, list[list[Trial]]]:
    """Run a search with these losses, or scores; its result, and the runs of each round."""
    running, rounds, answer = search(space, budget, further, earlier), [], None
    while True:
        try:
            rounds.append(next(running) if answer is None else running.send(answer))
        except StopIteration as end:
            return end.value, rounds
        answer = [
            value if isinstance(value, Score) else Score(value, value)
            for value in map(loss, rounds[-1])
        ]


def test_a_search_ends_at_the_end_of_its_ladder() -> None:
    ladder = doublings(1.0, 2)
    assert ladder == (0.25, 0.5, 1.0, 2.0, 4.0)
    assert climb((1.0,), ladder, lambda value: True, lambda value: value) == (0.25, 0.5, 1.0, 2.0)
    assert climb((1.0,), ladder, lambda value: value > 0.5, lambda value: value) == (0.5, 1.0, 2.0)


RATES = Space("optim.lr", (0.1, 0.4))


def test_a_ladder_grows_until_the_best_value_lies_inside() -> None:
    losses = {0.1: 0.5, 0.4: inf, 0.05: 0.25, 0.2: 0.75, 0.025: 0.375}
    tuned, rounds = finish(RATES, 5, lambda trial: losses[trial.candidate.value or 0])
    assert [[trial.candidate.value for trial in trials] for trials in rounds] == [
        [0.1, 0.4],
        [0.05, 0.2],
        [0.025],
    ]
    assert tuned.runs == 5 and not tuned.at_the_edge
    # Octaves 0, 1 and 2 have 0.375, 0.25 and 0.5: the vertex is at 1 - 0.125/0.75 octaves.
    assert tuned.chosen == Candidate(0.0445)
    assert tuned.score == pytest.approx(0.25 - 0.75 / 4 * (1 / 6) ** 2, rel=1e-9)
    assert RATES.overrides(tuned.chosen) == ("optim.lr=0.0445",)


def test_the_budget_ends_a_search_at_an_edge() -> None:
    tuned, rounds = finish(RATES, 4, lambda trial: trial.candidate.value or 0)
    assert [[trial.candidate.value for trial in trials] for trials in rounds] == [
        [0.1, 0.4],
        [0.05, 0.2],
    ]
    assert tuned.chosen == Candidate(0.05) and tuned.at_the_edge


def test_by_the_earlier_rule_near_ties_get_more_seeds_and_the_smaller_value_inside_wins() -> None:
    noise = {101: 0.0, 102: 0.02, 103: -0.01}
    means = {0.1: 0.301, 0.4: 0.9, 0.05: 0.6, 0.2: 0.3}

    def loss(trial: Trial) -> float:
        value = trial.candidate.value or 0.0
        return means[value] + (noise[trial.seed] if value == 0.1 else 0.0)

    tuned, rounds = finish(RATES, 8, loss, earlier=True)
    # Of four values, the better half gets two further seeds: 4 + 2 + 2 runs.
    assert [{trial.seed for trial in trials} for trials in rounds] == [{101}, {101}, {102}, {103}]
    assert tuned.chosen == Candidate(0.1) and tuned.runs == 8
    assert tuned.scores()[Candidate(0.2)] == [0.3, 0.3, 0.3]
    clear, _ = finish(RATES, 8, lambda trial: means[trial.candidate.value or 0], earlier=True)
    assert clear.chosen == Candidate(0.2) and clear.runs == 6


def test_halving_leaves_the_better_half_of_the_combinations() -> None:
    lists = (("algo.tau=1",), ("algo.tau=2",), ("algo.tau=4",))
    space = Space("optim.lr", (0.1, 0.4), lists)
    worse = {"algo.tau=1": 2.0, "algo.tau=2": 1.0, "algo.tau=4": 0.0}

    def loss(trial: Trial) -> float:
        value = trial.candidate.value or 0.0
        return worse[trial.candidate.others[0]] + abs(value - 0.2)

    tuned, rounds = finish(space, 12, loss)
    assert [len(trials) for trials in rounds[:2]] == [6, 4]
    assert {trial.candidate.others[0] for trial in rounds[1]} == {"algo.tau=2", "algo.tau=4"}
    assert tuned.chosen == Candidate(0.178, ("algo.tau=4",)) and tuned.runs <= 12
    assert (space.least_budget, RATES.least_budget) == (10, 4)


def test_lists_without_a_ladder_are_tried_once_each() -> None:
    space = Space(combinations=(("a=1",), ("a=2",), ("a=3",)))
    tuned, rounds = finish(space, 3, lambda trial: float(trial.candidate.others[0][-1]))
    assert [len(trials) for trials in rounds] == [3] and space.least_budget == 3
    assert tuned.chosen == Candidate(None, ("a=1",))
    assert finish(Space(), 0, lambda trial: 0.0) == (Tuned(Candidate(None)), [])


def test_a_list_of_rates_has_edges_and_near_ties_like_a_ladder() -> None:
    space = Space(combinations=tuple((f"optim.lr={rate}",) for rate in (0.05, 0.1, 0.2, 0.4)))
    tuned, _ = finish(space, 4, lambda trial: float(trial.candidate.others[0][9:]))
    assert tuned.chosen == Candidate(None, ("optim.lr=0.05",)) and tuned.at_the_edge
    losses = {"0.05": [1.0, 1.0], "0.1": [0.62, 0.4], "0.2": [0.5, 0.5], "0.4": [1.0, 1.0]}

    def loss(trial: Trial) -> float:
        return losses[trial.candidate.others[0][9:]][(trial.seed + 1) % 2]

    tuned, _ = finish(space, 18, loss, earlier=True)
    assert tuned.chosen == Candidate(None, ("optim.lr=0.1",)) and not tuned.at_the_edge
    assert tuned.runs == 18
    tuned, rounds = finish(space, 10, loss, further=2)
    # The means of 0.1, 0.2 and 0.4 over three seeds are 0.547, 0.5 and 1.
    assert [len(trials) for trials in rounds] == [4, 6]
    assert tuned.chosen == Candidate(None, ("optim.lr=0.15",)) and not tuned.at_the_edge


def test_a_search_in_which_every_run_diverges_takes_the_smallest_value() -> None:
    tuned, _ = finish(RATES, 4, lambda trial: inf)
    assert tuned.at_the_edge and tuned.chosen.value == 0.05


def test_a_search_by_time_takes_the_loss_only_among_runs_that_miss_the_target() -> None:
    """Neither of the first two rates reaches the target; 0.4 reaches it first, 0.2 ends lowest."""
    scores = {
        0.1: Score(inf, 0.9),
        0.4: Score(inf, 0.8),
        0.2: Score(30.0, 0.1),
        0.8: Score(20.0, 0.5),
        1.6: Score(inf, 0.6),
    }
    tuned, rounds = finish(RATES, 5, lambda trial: scores[trial.candidate.value or 0])
    assert [[trial.candidate.value for trial in trials] for trials in rounds] == [
        [0.1, 0.4],
        [0.2, 0.8],
        [1.6],
    ]
    assert tuned.chosen == Candidate(0.8) and not tuned.at_the_edge  # 1.6 misses the target
    assert tuned.scores()[Candidate(0.8)] == [20.0] and min(tuned.losses.values()) == 0.1
    missed, _ = finish(RATES, 4, lambda trial: Score(inf, trial.candidate.value or 0))
    assert missed.chosen == Candidate(0.05) and missed.scores()[Candidate(0.05)] == [inf]


def test_a_rate_that_misses_the_target_with_a_further_seed_drops_out() -> None:
    times = {0.1: 40.0, 0.4: 50.0, 0.2: 30.0, 0.05: 60.0}

    def score(trial: Trial) -> Score:
        value = trial.candidate.value or 0.0
        return Score(inf if (value, trial.seed) == (0.2, 102) else times[value], value)

    tuned, rounds = finish(RATES, 8, score, earlier=True)
    assert [{trial.candidate.value for trial in trials} for trials in rounds[2:]] == [{0.1, 0.2}]
    assert tuned.chosen == Candidate(0.1) and tuned.runs == 6
    tuned, rounds = finish(RATES, 8, score, further=1)
    assert {trial.candidate.value for trial in rounds[2]} == {0.1, 0.2, 0.4}
    assert tuned.chosen == Candidate(0.1) and tuned.runs == 7


def test_optuna_proposes_values_of_lists_and_ranges_in_rounds_of_four() -> None:
    texts = {"optim.lr": "tag(log,interval(0.01,1))", "algo.tau": "int(interval(1,3))", "x": "a,b"}
    spread = {key: distribution(key, text) for key, text in texts.items()}
    assert [low for low, _ in spread.values()] == [0.01, 1, "a"]
    space = Space(ranges={key: values for key, (_, values) in spread.items()})

    def loss(trial: Trial) -> float:
        rate, tau, letter = (word.partition("=")[2] for word in trial.candidate.others)
        return abs(float(rate) - 0.1) + int(tau) + (letter == "b")

    tuned, rounds = finish(space, 30, loss)
    assert [len(trials) for trials in rounds[:3]] == [4, 4, 4] and sum(map(len, rounds)) <= 30
    assert tuned.chosen.others[1:] == ("algo.tau=1", "x=a") and tuned.runs == sum(map(len, rounds))
    assert tuned.losses[Trial(tuned.chosen, 101)] == min(tuned.losses.values()) < 1.05
    assert finish(space, 30, loss) == (tuned, rounds)
    assert (space.size, space.least_budget) == (4, 1)
    worst, _ = finish(space, 5, lambda trial: inf)
    assert worst.runs == 5 and worst.losses[Trial(worst.chosen, 101)] == inf


def test_rates_of_which_one_is_zero_or_twice_in_the_list_have_no_parabola() -> None:
    for rates in (("0", "0.1", "0.2"), ("0.1", "0.10", "0.2")):
        space = Space(combinations=tuple((f"optim.lr={rate}",) for rate in rates))
        tuned, _ = finish(space, 6, lambda trial: abs(float(trial.candidate.others[0][9:]) - 0.1))
        assert tuned.chosen == Candidate(None, ("optim.lr=0.1",)) and tuned.score == 0.0


def test_every_number_of_a_list_has_edges() -> None:
    lists = tuple(
        (f"algo.diloco.lr={rate}", f"algo.mixing={name}")
        for rate in (0.1, 0.4, 0.7)
        for name in "ab"
    )

    def loss(best: float) -> Callable[[Trial], float]:
        return lambda trial: (
            abs(float(trial.candidate.others[0].split("=")[1]) - best)
            + abs((trial.candidate.value or 0) - 0.2)
        )

    tuned, _ = finish(Space("optim.lr", (0.1, 0.4), lists), 24, loss(0.0))
    assert tuned.edges == ("algo.lr",) and tuned.at_the_edge
    tuned, _ = finish(Space("optim.lr", (0.1, 0.4), lists), 24, loss(0.4))
    assert tuned.edges == ()
    tuned, _ = finish(Space("optim.lr", (0.1, 0.4), lists), 24, loss(0.0), earlier=True)
    assert tuned.edges == ()


def test_the_best_candidates_of_all_arms_get_as_many_seeds() -> None:
    many = Space("optim.lr", (0.1, 0.4), tuple((f"algo.lr={place}",) for place in range(12)))
    assert (RATES.least_budget, many.least_budget) == (4, 36)
    assert [further_seeds([RATES], budget) for budget in (4, 6, 7, 8, 12, 24, 60)] == [
        0,
        0,
        1,
        1,
        2,
        4,
        7,
    ]
    assert further_seeds([RATES, many], 42) == 2

    def loss(trial: Trial) -> float:
        return abs((trial.candidate.value or 0.0) - 0.2)

    for space in (RATES, many):
        tuned, _ = finish(space, 42, loss, further=2)
        assert sorted(map(len, tuned.scores().values()))[-4:] == [1, 3, 3, 3] and tuned.runs <= 42


def test_the_rate_of_a_search_has_less_regret_than_that_of_the_earlier_rule() -> None:
    """0.02 nats at an octave from the best rate, and a spread of 0.02 nats between seeds."""
    generator = Random(1)
    regrets: dict[bool, list[float]] = {True: [], False: []}

    def regret(rate: float | None, best: float) -> float:
        return 0.02 * (log2((rate or 0.0) / 0.2) - best) ** 2

    for _ in range(150):
        best = generator.uniform(-0.5, 0.5)
        noise: dict[Trial, float] = {}

        def loss(trial: Trial, best: float = best, noise: dict[Trial, float] = noise) -> float:
            deviation = noise.setdefault(trial, generator.gauss(0, 0.02))
            return regret(trial.candidate.value, best) + deviation

        for earlier, found in regrets.items():
            tuned, _ = finish(RATES, 12, loss, further=0 if earlier else 2, earlier=earlier)
            found.append(regret(tuned.chosen.value, best))
    assert fmean(regrets[True]) == pytest.approx(0.0059566, abs=1e-5)
    assert fmean(regrets[False]) == pytest.approx(0.0024630, abs=1e-5)
