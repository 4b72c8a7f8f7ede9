"""SparseLoCo, and error feedback, against recursions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.recursion import ADAM, OPTIM, STEPS, Oracle, assert_equal, largest, same
from helpers.tiny import START, D, Momentum, gradient, run, sgd

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.sparseloco import SparseLoCo
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.top_k import TopK


@pytest.mark.parametrize("optim", [OPTIM, ADAM])
def test_sparseloco_without_loss_is_diloco_without_momentum(optim: Any) -> None:
    assert same(SparseLoCo(Identity(), 4, lr=0.8), DiLoCo(4, lr=0.8, momentum=0.0), 3, optim, 14)


@pytest.mark.parametrize("divide_by", ["workers", "senders"])
def test_sparseloco(divide_by: Any) -> None:
    """The largest number of each difference is sent."""
    oracle, theta, e = Oracle(3), START.copy(), np.zeros((3, D))
    for _ in oracle.exchanges(STEPS, 3):
        e = 0.9 * e + theta - oracle.x
        q = largest(e)
        e = e - q
        senders = np.maximum((q != 0).sum(axis=0), 1)
        theta = theta - 0.8 * q.sum(axis=0) / (3 if divide_by == "workers" else senders)
        oracle.x = np.tile(theta, (3, 1))
    algo = SparseLoCo(TopK(k=1, side=8), 3, beta=0.9, lr=0.8, divide_by=divide_by)
    assert_equal(run(algo, 3, STEPS, OPTIM).x, oracle.x)


@pytest.mark.parametrize("codec", [TopK(k=1, side=8), TopK(k=2, side=8, bits=2)])
def test_what_was_sent_and_what_is_left_is_the_sum_of_all_differences(codec: Any) -> None:
    """For a feedback without decay, whatever the codec."""
    result = run(SparseLoCo(codec, 1, beta=1.0), 3, STEPS, sgd(lr=0.2))
    moved = START - result.x[0]  # the mean of all that was sent
    left = np.mean([worker.state["error"].numpy() for worker in result.workers], axis=0)
    steps = np.zeros(D)
    for k, at in enumerate([START, *result.history[0]][:STEPS]):
        steps += np.mean([0.2 * gradient(i, k, at) for i in range(3)], axis=0)
    assert_equal(moved + left, steps)


def test_coded_gradients_with_error_feedback() -> None:
    """The largest number of each gradient is sent."""
    momentum, e, x = Momentum(OPTIM), np.zeros((3, D)), START.copy()
    for k in range(STEPS):
        e = e + np.stack([gradient(i, k, x) for i in range(3)])
        q = largest(e)
        e = e - q
        x = x - momentum.step(q.mean(axis=0), x)
    assert_equal(run(ARSGD(codec=TopK(k=1, side=8)), 3, STEPS, OPTIM).x, np.tile(x, (3, 1)))
