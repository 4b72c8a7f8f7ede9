"""D-squared against the recursion of its paper."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import COSINE, PLAIN, SIZES, STEPS, assert_equal
from helpers.tiny import START, gradient, run

from sgp_runner.algorithms.d_squared import DSquared
from sgp_runner.core.optim import (
    SGD,
)
from sgp_runner.topology.graphs import (
    Complete,
    Ring,
    Torus,
    matrix,
)
from sgp_runner.topology.verify import smallest_eigenvalue


@pytest.mark.parametrize("optim", [PLAIN, COSINE])
@pytest.mark.parametrize("n", SIZES)
def test_d_squared(n: int, optim: SGD) -> None:
    w = (np.array(matrix(Ring(), n, 0)) + np.eye(n)) / 2
    rates = [0.2 if optim is PLAIN else rate(optim, k) for k in range(STEPS)]
    x = old = np.tile(START, (n, 1))
    g_old = None
    for k in range(STEPS):
        g = np.stack([gradient(i, k, x[i]) for i in range(n)])
        drift = 0.0 if g_old is None else (old - x) / rates[k - 1] - g_old
        old, x, g_old = x, w @ (x - rates[k] * (g + drift)), g
        assert_equal(x.mean(axis=0), old.mean(axis=0) - rates[k] * g.mean(axis=0))
    assert_equal(run(DSquared(Ring()), n, STEPS, optim).x, x)


def rate(optim: SGD, step: int) -> float:
    from helpers.tiny import PER_EPOCH

    from sgp_runner.core.optim import Horizon, lr_at

    return lr_at(optim, step / PER_EPOCH, Horizon(STEPS / PER_EPOCH, PER_EPOCH, 1, 1))


def test_smallest_eigenvalues() -> None:
    assert [smallest_eigenvalue(Ring(), n) for n in (2, 3, 4, 8)] == pytest.approx(
        [0, 0, -1 / 3, -1 / 3]
    )
    assert smallest_eigenvalue(Ring(), 100) == pytest.approx(-1 / 3)
    assert smallest_eigenvalue(Torus(), 8) == pytest.approx(-1 / 2)
    assert smallest_eigenvalue(Complete(), 5) == pytest.approx(0)
