"""D-squared against the recursion of its paper."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import COSINE, PLAIN, SIZES, STEPS, assert_equal
from helpers.tiny import PER_EPOCH, START, gradient, run

from sgp_runner.algorithms.d_squared import DSquared
from sgp_runner.core.optim import SGD, Horizon, lr_at
from sgp_runner.topology.graphs import (
    Complete,
    Ring,
    Topology,
    Torus,
    matrix,
)
from sgp_runner.topology.verify import smallest_eigenvalue


@pytest.mark.parametrize("optim", [PLAIN, COSINE])
@pytest.mark.parametrize("n", SIZES)
def test_d_squared(n: int, optim: SGD) -> None:
    w = (np.array(matrix(Ring(), n, 0)) + np.eye(n)) / 2
    horizon = Horizon(STEPS / PER_EPOCH, PER_EPOCH, 1, 1)
    rates = [lr_at(optim, k / PER_EPOCH, horizon) for k in range(STEPS)]
    x = old = np.tile(START, (n, 1))
    g_old = None
    for k in range(STEPS):
        g = np.stack([gradient(i, k, x[i]) for i in range(n)])
        drift = 0.0 if g_old is None else (old - x) / rates[k - 1] - g_old
        old, x, g_old = x, w @ (x - rates[k] * (g + drift)), g
        assert_equal(x.mean(axis=0), old.mean(axis=0) - rates[k] * g.mean(axis=0))
    assert_equal(run(DSquared(Ring()), n, STEPS, optim).x, x)


@pytest.mark.parametrize(
    ("graph", "n", "value"),
    [
        *((Ring(), 2, 0), (Ring(), 3, 0), (Ring(), 4, -1 / 3), (Ring(), 8, -1 / 3)),
        *((Ring(), 100, -1 / 3), (Torus(), 8, -1 / 2), (Complete(), 5, 0)),
    ],
)
def test_smallest_eigenvalues(graph: Topology, n: int, value: float) -> None:
    assert smallest_eigenvalue(graph, n) == pytest.approx(value)
