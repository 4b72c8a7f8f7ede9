"""Power of paired tests, against published tables."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean, stdev

import pytest

from sgp_runner.studies.power import SeedPlan, detectable, power, seeds_needed, upper_limit


def test_power_agrees_with_the_tables_of_paired_tests() -> None:
    # Two-sided, 5 %, power 80 %: Cohen's d of 0.5 needs 34 pairs, of 0.8 needs 15, of 1 needs 10.
    assert [seeds_needed(d, 1.0) for d in (0.5, 0.8, 1.0)] == [34, 15, 10]
    assert seeds_needed(0.01, 1.0) is None
    assert power(1.0, 1.0, 10) == pytest.approx(0.8031, abs=1e-4)


def test_plans_from_four_pilots_have_their_power() -> None:
    """The mean power over 40 plans, each from the spread of four random differences."""
    assert upper_limit(1.0, 4) == pytest.approx(1.4516, abs=1e-4)
    generator = Random(1)
    for effect in (0.5, 1.0, 2.0):
        reached = []
        for _ in range(40):
            spread = upper_limit(stdev(generator.gauss() for _ in range(4)), 4)
            reached.append(power(effect, 1.0, seeds_needed(effect, spread) or 1000))
        assert 0.8 <= fmean(reached) < 0.95


def test_a_plan_with_too_few_seeds_is_refused() -> None:
    plan = SeedPlan(matters=0.02, spread=0.02, seeds=10, unit="nats", pilot="pilot")
    assert str(plan).startswith("10 seeds: an effect 0.02")
    assert plan.measured(0.02).startswith("Measured: a spread of 0.02, with which")
    assert plan.measured(0.04).endswith("a probability of 29 %.")
    with pytest.raises(ValueError, match="^9 seeds give a power of only 0.75"):
        SeedPlan(matters=0.02, spread=0.02, seeds=9, unit="nats", pilot="pilot")


def test_the_detectable_effect_is_that_of_the_tables() -> None:
    assert detectable(34) == pytest.approx(0.495, abs=1e-3) and detectable(10) < 1 < detectable(9)
    assert detectable(1) == math.inf


def test_seeds_that_are_all_alike_find_every_difference() -> None:
    assert power(0.1, 0.0, 3) == 1.0
