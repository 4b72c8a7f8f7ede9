"""Statistics and verdicts of claims, and the claim that needs no run."""

from __future__ import annotations

import math

import pytest

from sgp_runner.claims.averaging import find, unevenness
from sgp_runner.claims.evidence import Between, Finding, Interval, Verdict, exactly, paired, verdict_of


def test_a_paired_interval_is_students() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), and t(0.975, 2) = 4.302653.
    effect = paired([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (effect.mean, effect.seeds) == (2.0, 3)
    assert effect.high - effect.mean == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert effect.mean - effect.low == pytest.approx(4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert paired([2.0, 3.0], [1.0, 2.0]) == Interval(1.0, 1.0, 1.0, 2)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.1, 0.9, Verdict.REPRODUCED), (-0.5, 0.5, Verdict.UNDECIDED), (-0.9, -0.1, Verdict.CONTRADICTED), (0.5, 2.0, Verdict.UNDECIDED)],
)
def test_an_interval_is_judged_as_a_whole(low: float, high: float, verdict: Verdict) -> None:
    assert Between(0.0, 1.0).judge(Interval((low + high) / 2, low, high, 5)) == verdict


def test_one_contradiction_contradicts_a_claim() -> None:
    yes, no = Finding("", exactly(1.0), Between(least=0.0)), Finding("", exactly(-1.0), Between(least=0.0))
    open_ = Finding("", Interval(0.0, -1.0, 1.0, 5), Between(least=0.0))
    assert verdict_of([yes, yes]) == Verdict.REPRODUCED
    assert verdict_of([yes, open_]) == Verdict.UNDECIDED
    assert verdict_of([yes, open_, no]) == Verdict.CONTRADICTED


def test_averaging_is_exact_for_powers_of_two_only() -> None:
    assert [unevenness(n) for n in (2, 8, 64)] == [0.0, 0.0, 0.0]
    assert unevenness(3) == unevenness(6) == 0.5  # 3: weights 1/2, 1/4, 1/4
    assert verdict_of(find()) == Verdict.REPRODUCED
