"""Local SGD against its recursion."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import OPTIM, STEPS, Oracle, assert_equal
from helpers.tiny import run

from sgp_runner.algorithms.local_sgd import LocalSGD


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("tau", [1, 2, 5])
def test_local_sgd(tau: int, n: int) -> None:
    oracle = Oracle(n)
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % tau == 0 or k == STEPS - 1:
            oracle.x = np.tile(oracle.x.mean(axis=0), (n, 1))
    assert_equal(run(LocalSGD(tau), n, STEPS, OPTIM).x, oracle.x)
