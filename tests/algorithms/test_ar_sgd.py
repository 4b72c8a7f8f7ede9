"""AR-SGD, PS-SGD and Pipe-SGD of depth 1 are one recursion."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import OPTIM, SIZES, STEPS, Oracle, assert_equal, same
from helpers.tiny import Momentum, run

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.pipe_sgd import PipeSGD
from sgp_runner.algorithms.ps_sgd import PSSGD
from sgp_runner.core.optim import (
    Adam,
    Constant,
)


def test_averaging_parameters_differs_from_averaging_gradients_for_adam() -> None:
    assert not same(ARSGD(), ARSGD(average="parameters"), 3, Adam(Constant(), lr=0.1))
    assert same(ARSGD(), PSSGD(), 3, Adam(Constant(), lr=0.1))
    assert same(ARSGD(), PipeSGD(depth=1), 3, Adam(Constant(), lr=0.1))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "algo", [ARSGD(), ARSGD(average="parameters"), PSSGD(), PipeSGD(depth=1)], ids=str
)
def test_ar_sgd_and_what_equals_it(algo: ARSGD | PSSGD | PipeSGD, n: int) -> None:
    """For SGD, averaging parameters equals averaging gradients, with momentum and decay too."""
    oracle, momentum = Oracle(n), Momentum(OPTIM)
    for k in range(STEPS):
        oracle.x = oracle.x - momentum.step(oracle.mean_g(k), oracle.x[0])
    x = run(algo, n, STEPS, OPTIM).x
    assert_equal(x, np.tile(oracle.x[0], (len(x), 1)))
