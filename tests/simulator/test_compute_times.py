"""Compute times drawn in blocks are those that would be drawn one by one."""

from __future__ import annotations

from math import log

import pytest
from numpy.random import default_rng

from sgp_runner.cluster.compute_variation import ConstantTime, GammaTime, LogNormalTime
from sgp_runner.simulator.compute_times import BLOCK, ComputeTimes


@pytest.mark.parametrize("law", [LogNormalTime(0.3), GammaTime(4.0), ConstantTime()])
def test_blocks_are_single_draws_and_can_be_saved_within(
    law: LogNormalTime | GammaTime | ConstantTime,
) -> None:
    times, single = ComputeTimes(law, 2.0, default_rng(5)), default_rng(5)
    for number in range(2 * BLOCK + 3):
        assert [times.draw()] == law.sample(2.0, single, 1)
        if number in (0, 7, BLOCK - 1, BLOCK):
            assert times.state == single.bit_generator.state
    resumed = ComputeTimes(law, 2.0, default_rng(6))
    resumed.draw()
    resumed.state = times.state
    assert [resumed.draw() for _ in range(5)] == law.sample(2.0, single, 5)


def test_a_log_normal_time_has_the_bits_of_numpys() -> None:
    random, variance = default_rng(1), log(1 + 0.05**2)
    assert LogNormalTime(0.05).sample(3.0, default_rng(1), 4) == [
        3.0 * float(random.lognormal(-variance / 2, variance**0.5)) for _ in range(4)
    ]
