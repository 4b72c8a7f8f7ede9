"""Gossip-PGA against its recursion."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import ADAM, OPTIM, STEPS, Oracle, assert_equal, same
from helpers.tiny import run

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.gossip_pga import GossipPGA
from sgp_runner.topology.graphs import (
    Ring,
)


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_gossip_pga(n: int) -> None:
    oracle = Oracle(n)
    for k in range(STEPS):
        half = oracle.x - oracle.d(k)
        w = np.full((n, n), 1 / n) if (k + 1) % 3 == 0 else oracle.p(Ring(), k)
        oracle.x = w @ half
    assert_equal(run(GossipPGA(Ring(), period=3), n, STEPS, OPTIM).x, oracle.x)


def test_gossip_pga_between_its_two_ends() -> None:
    assert same(GossipPGA(Ring(), period=1), ARSGD(average="parameters"), 4, ADAM)
    assert same(GossipPGA(Ring(), period=99), DPSGD(Ring(), order="adapt_then_combine"), 4)
