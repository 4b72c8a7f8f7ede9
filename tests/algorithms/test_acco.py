"""ACCO against its recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.recursion import ADAM, OPTIM, PLAIN, STEPS, assert_equal
from helpers.tiny import START, D, Momentum, gradient, machines, run, tiny_problem

from sgp_runner.algorithms.acco import ACCO
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.core.problem import Problem


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("steps", [STEPS, STEPS - 1])
def test_acco(n: int, steps: int) -> None:
    """With an odd number of gradients the last one is dropped."""

    def mean(t: int, x: np.ndarray) -> np.ndarray:
        return np.mean([gradient(i, t, x) for i in range(n)], axis=0)

    x, momentum = START.copy(), Momentum(OPTIM)
    first = mean(0, x)
    for t in range(1, steps, 2):
        second = mean(t, x)  # at x, while the first is averaged
        predicted = x - Momentum(OPTIM, momentum.v.copy()).step(first, x)
        x = x - momentum.step((first + second) / 2, x)
        first = mean(t + 1, predicted)
    assert_equal(run(ACCO(), n, steps, OPTIM).x, np.tile(x, (n, 1)))


def with_gradients(g: np.ndarray) -> Problem:
    """A problem with the gradients ``g`` [n, STEPS, D] at any parameters."""
    return tiny_problem(np.full(g.shape, 1e-8), -1e16 * g)


@pytest.mark.parametrize("optim", [PLAIN, OPTIM, ADAM], ids=["plain", "nesterov", "adam"])
def test_acco_of_gradients_that_do_not_depend_on_x_is_ar_sgd_of_two_batches(optim: Any) -> None:
    g = np.random.default_rng(5).normal(size=(3, STEPS, D))
    pairs = np.zeros_like(g)
    pairs[:, : STEPS // 2] = (g[:, ::2] + g[:, 1::2]) / 2
    acco = run(ACCO(), 3, STEPS, optim, problem=with_gradients(g))
    assert_equal(acco.x, run(ARSGD(), 3, STEPS // 2, optim, problem=with_gradients(pairs)).x)
    assert np.abs(acco.x - START).max() > 0.1


def test_acco_sends_as_many_bytes_for_a_gradient_as_ar_sgd() -> None:
    acco, ar_sgd = (run(algo, 3, STEPS, OPTIM).workers[0].comm for algo in (ACCO(), ARSGD()))
    assert acco.num_bytes_sent == ar_sgd.num_bytes_sent == STEPS * round(4 / 3 * 8 * D)


def test_all_reduces_of_acco_take_place_during_gradients_of_the_same_length() -> None:
    """An all-reduce of two nodes takes the 24 s of its bytes at 8 bit/s; the last one is seen."""
    slow = machines(seconds=24.0, bandwidth=8.0)
    ends = [run(algo, 2, STEPS, OPTIM, slow).simulation.clock.now for algo in (ACCO(), ARSGD())]
    assert ends == [24.0 * (STEPS + 1), 2 * 24.0 * STEPS]


def test_the_prediction_of_acco_keeps_the_state_of_the_optimizer() -> None:
    buffers = [run(ACCO(), 2, steps, ADAM).workers[0].buffers for steps in (3, 4)]
    assert [float(state["steps"]) for state in buffers] == [1, 2]
