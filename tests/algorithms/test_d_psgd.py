"""D-PSGD against its matrix recursion."""

from __future__ import annotations

from itertools import product

import pytest
from helpers.recursion import OPTIM, SIZES, STEPS, SYMMETRIC, Oracle, assert_equal
from helpers.tiny import run

from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.topology.graphs import (
    BipartiteExponential,
    Topology,
)


@pytest.mark.parametrize(
    ("topology", "n"), [*product(SYMMETRIC, SIZES), (BipartiteExponential(), 6)], ids=str
)
def test_d_psgd(topology: Topology, n: int) -> None:
    oracle, adapt_first = Oracle(n), Oracle(n)
    for k in range(STEPS):
        oracle.x = oracle.p(topology, k) @ oracle.x - oracle.d(k)
        adapt_first.x = oracle.p(topology, k) @ (adapt_first.x - adapt_first.d(k))
    assert_equal(run(DPSGD(topology), n, STEPS, OPTIM).x, oracle.x)
    assert_equal(run(DPSGD(topology, order="adapt_then_combine"), n, STEPS, OPTIM).x, adapt_first.x)
