"""Intervals, families of tests, ranks, and times to a target, against literal values."""

from __future__ import annotations

import math

import pytest

from sgp_runner.studies.statistics import (
    Between,
    Interval,
    Reached,
    exactly,
    holm,
    horizon_of,
    paired,
    ranked,
    ranks,
)


def test_a_paired_interval_is_students() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), and t(0.975, 2) = 4.302653.
    effect = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (effect.mean, effect.seeds) == (2.0, 3)
    assert effect.high - effect.mean == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert effect.mean - effect.low == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert effect.error == pytest.approx(1 / math.sqrt(3), rel=1e-9)
    assert Interval(1.0, 1.0, 1.0, 1).error == 0
    assert paired([2.0, 3.0], [1.0, 2.0]) == Interval(1.0, 1.0, 1.0, 2)


def test_ranks_of_differences_are_wilcoxons() -> None:
    """Of the sums of ranks 1 to 7, 19 of 128 are at most 7, the rank of the negative difference."""
    effect = ranked([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -90.0], [0.0] * 7)
    assert (effect.p, effect.not_above(0.0)) == (38 / 128, 19 / 128)
    assert effect.mean == 3.0  # of 28 averages, 7 are negative, and 3.0 is the median
    assert (effect.low, effect.high) == (-44.0, 5.0)
    assert effect.mirrored.mean == -3.0 and effect.mirrored.p == effect.p
    assert Between(-9.0, 9.0).inside(effect) == 19 / 128
    assert ranked([2.0] * 6, [1.0] * 6) == Interval(1.0, 1.0, 1.0, 6)


def test_holms_method_adjusts_in_the_order_of_the_findings() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def tail(t: float) -> float:
    """The probability that Student's t with two degrees of freedom is larger than ``t``."""
    return (1 - t / math.sqrt(t * t + 2)) / 2


def test_the_two_sided_p_value_is_twice_the_tail() -> None:
    effect = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])  # 2, standard error 1/sqrt(3)
    assert effect.p == pytest.approx(2 * tail(2 * math.sqrt(3)), rel=1e-9)
    assert effect.mirrored.p == pytest.approx(effect.p, rel=1e-9)
    assert exactly(1.0).p == 1.0 and paired([2.0, 3.0], [1.0, 2.0]).p == 1.0


def test_equivalence_takes_two_one_sided_tests() -> None:
    effect = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert Between(0.0, 3.0).inside(effect) == pytest.approx(tail(math.sqrt(3)), rel=1e-9)
    assert Between(-3.0, 1.0).inside(effect) == pytest.approx(1 - tail(math.sqrt(3)), rel=1e-9)
    assert Between(-9.0, 9.0).inside(paired([0.5, 0.25], [0.5, 0.25])) == 1.0


def test_arms_that_are_not_separated_share_a_rank() -> None:
    near = {"a": [1.0, 2.0, 3.0], "b": [1.1, 1.9, 3.1], "c": [9.0, 10.1, 11.0]}
    assert ranks([*near], lambda a, b: paired(near[a], near[b])) == {"a": 1, "b": 1, "c": 3}
    equal = {"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [3.0, 4.0]}
    assert ranks("abc", lambda a, b: paired(equal[a], equal[b])) == {"a": 1, "b": 1, "c": 3}


def test_a_target_that_not_all_runs_reach_is_not_averaged_over_those_that_do() -> None:
    ours = Reached((2.0, 8.0, None), (10.0, 10.0, 6.0))
    theirs = Reached((3.0, 4.0, 5.0), (20.0, 20.0, 20.0))
    assert (ours.count, theirs.count) == (2, 3)
    assert (ours.median, Reached((1.0, None, None), (9.0,) * 3).median) == (8.0, math.inf)
    horizon = horizon_of([ours, theirs])
    assert horizon == 6.0 and horizon_of([theirs]) == math.inf
    assert ours.restricted(horizon) == (2.0, 6.0, 6.0)
    assert theirs.restricted(horizon) == (3.0, 4.0, 5.0)
    diverged = Reached((1.0, None), (9.0, math.inf))
    assert horizon_of([diverged, theirs]) == 20.0
    assert diverged.restricted(20.0) == (1.0, 20.0)
