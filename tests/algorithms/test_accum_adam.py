"""AccumAdam against its recursion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.recursion import ADAM, STEPS, assert_equal, same
from helpers.tiny import START, D, gradient, run

from sgp_runner.algorithms.accum_adam import AccumAdam
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.core.optim import AdamW, Constant
from sgp_runner.topology.graphs import BipartiteExponential, Complete, Ring, Topology, matrix

ADAMW = AdamW(Constant(), lr=0.05, weight_decay=0.1, clip=0.5)


@pytest.mark.parametrize("topology", [BipartiteExponential(), Ring(), Complete()], ids=str)
@pytest.mark.parametrize("every", [1, 3, 5, 100])
def test_accum_adam(every: int, topology: Topology) -> None:
    x = np.tile(START, (4, 1))
    m, v, a = (np.zeros((4, D)) for _ in range(3))
    for t in range(1, STEPS + 1):
        g = np.stack([gradient(i, t - 1, x[i]) for i in range(4)])
        k = -(-t // every)
        a += g / every
        of_m, of_v = 1 - 0.9**k, 1 - 0.98**k
        d = (0.9 * m + 0.1 * g) / of_m / (np.sqrt((0.98 * v + 0.02 * g**2) / of_v) + 1e-8)
        if t % every == 0:
            m, v, a = 0.9 * m + 0.1 * a, 0.98 * v + 0.02 * a**2, np.zeros((4, D))
        x = np.array(matrix(topology, 4, t - 1)) @ x - 0.05 * d
    assert_equal(run(AccumAdam(topology, every), 4, STEPS, ADAM).x, x)


@pytest.mark.parametrize("optim", [ADAM, ADAMW], ids=["adam", "adamw"])
@pytest.mark.parametrize("topology", [BipartiteExponential(), Ring()], ids=str)
def test_accum_adam_of_one_step_is_d_psgd_with_adam(topology: Topology, optim: Any) -> None:
    assert same(AccumAdam(topology, 1), DPSGD(topology), 4, optim)
    assert not same(AccumAdam(topology, 2), DPSGD(topology), 4, optim)


def test_accum_adam_of_one_node_and_one_step_is_adam_but_not_on_a_complete_graph() -> None:
    """Each node has moments of its own, and AR-SGD those of the mean gradient."""
    assert same(AccumAdam(Complete(), 1), ARSGD(), 1, ADAM)
    assert not same(AccumAdam(Complete(), 1), ARSGD(), 4, ADAM)


def test_accum_adam_sends_its_parameters_to_one_node_in_a_step() -> None:
    result = run(AccumAdam(BipartiteExponential()), 4, STEPS, ADAM)
    assert [worker.comm.num_bytes_sent for worker in result.workers] == [STEPS * 8 * D] * 4
