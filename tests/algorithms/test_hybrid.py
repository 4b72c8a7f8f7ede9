"""Switches between two algorithms."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import OPTIM, SHIFTS, STEPS
from helpers.tiny import Result, run

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.hybrid import Hybrid
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.core.worker import Worker


def test_a_hybrid_switches_after_its_epochs() -> None:
    """Four steps per epoch: six steps of AR-SGD, then six of SGP; momentum carries over."""
    algo = Hybrid(ARSGD(average="parameters"), SGP(SHIFTS), switch_epoch=1.5)
    together: list[bool] = []

    def look(result: Result, worker: Worker) -> None:
        if worker.rank == 2:
            together.append(bool(np.allclose(result.x[0], result.x[2], atol=1e-12)))

    result = run(algo, 3, STEPS, OPTIM, each_step=look)
    assert together == [True] * 6 + [False] * 6
    assert [worker.steps_taken for worker in result.workers] == [STEPS] * 3


@pytest.mark.parametrize("first", [SGP(SHIFTS), OSGP(SHIFTS), SlowMo(OSGP(SHIFTS), tau=4)], ids=str)
def test_all_workers_of_a_hybrid_are_equal_after_its_switch(first: Algorithm) -> None:
    """Models and momentum: with equal gradients from then on, any difference would stay."""
    result = run(Hybrid(first, ARSGD(average="gradients"), switch_epoch=1.5), 3, STEPS, OPTIM)
    assert np.ptp(result.x, axis=0).max() < 1e-14
