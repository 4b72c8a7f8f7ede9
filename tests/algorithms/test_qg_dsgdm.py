"""QG-DSGDm against the recursion of its paper."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import OFF, PLAIN, SIZES, STEPS, assert_equal, same
from helpers.tiny import START, D, gradient, run, sgd

from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.qg_dsgdm import QGDSGDm
from sgp_runner.topology.graphs import (
    Ring,
    matrix,
)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("nesterov", [True, False])
def test_qg_dsgdm(n: int, nesterov: bool) -> None:
    optim = sgd(lr=0.2, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    x, m_hat = np.tile(START, (n, 1)), np.zeros((n, D))
    w = np.array(matrix(Ring(), n, 0))
    for k in range(STEPS):
        g = np.stack([gradient(i, k, x[i]) for i in range(n)]) + 0.01 * x
        m = 0.9 * m_hat + g
        new = w @ (x - 0.2 * (g + 0.9 * m if nesterov else m))
        m_hat = 0.8 * m_hat + 0.2 * (x - new) / 0.2
        x = new
    assert_equal(run(QGDSGDm(Ring(), mu=0.8), n, STEPS, optim).x, x)


def test_quasi_global_momentum_of_zero_is_d_psgd() -> None:
    assert same(QGDSGDm(Ring()), DPSGD(Ring(), order="adapt_then_combine"), 4, PLAIN)


def test_quasi_global_momentum_survives_a_learning_rate_of_zero() -> None:
    result = run(QGDSGDm(Ring()), 3, 4, sgd(momentum=0.9, schedule=OFF))
    assert_equal(result.x, np.tile(START, (3, 1)))
