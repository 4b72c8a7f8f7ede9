"""Properties of all algorithms: refusals, one node, vmap, the optimum, the shared budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.recursion import OPTIM, SHIFTS, STEPS
from helpers.tiny import START, D, Momentum, gradient, machines, run, sgd

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.pipe_sgd import PipeSGD
from sgp_runner.algorithms.ps_sgd import PSSGD
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.simulator.engine import Loop, Vmap
from sgp_runner.topology.graphs import (
    BipartiteExponential,
    Ring,
)

EVERY: list[Algorithm] = [
    ARSGD(),
    ARSGD(average="parameters"),
    DPSGD(Ring()),
    SGP(SHIFTS),
    OSGP(SHIFTS),
    OSGP(SHIFTS, layout="released"),
    SlowMo(SGP(SHIFTS), tau=3),
    SlowMo(OSGP(SHIFTS), tau=3, exact_average=False),
    GapAware(),
    GapAware(momentum="per_worker"),
    PipeSGD(),
    PipeSGD(compression="quantize8"),
    LocalSGD(3),
    PSSGD(),
]


@pytest.mark.parametrize("cluster", [machines(), machines(LogNormalTime(0.3), latency=0.4)])
@pytest.mark.parametrize("algo", [*EVERY, ADPSGD(BipartiteExponential())], ids=str)
def test_every_algorithm_may_give_its_gradients_away_under_vmap(
    cluster: Cluster, algo: Algorithm
) -> None:
    loop, vmap = (
        run(algo, 4, STEPS, OPTIM, cluster, engine=engine).x
        for engine in (Loop, lambda problem: Vmap(problem, 3))
    )
    np.testing.assert_allclose(vmap, loop, rtol=0, atol=1e-12)


@pytest.mark.parametrize("algo", EVERY, ids=str)
def test_one_node_is_enough(algo: Algorithm) -> None:
    assert np.isfinite(run(algo, 1, STEPS, OPTIM).x).all()


@pytest.mark.parametrize(
    "algo",
    [*EVERY, ADPSGD(BipartiteExponential()), ADPSGD(Ring(), averages_per_gradient=1.5)],
    ids=str,
)
def test_every_algorithm_approaches_the_optimum_and_leaves_nothing_behind(algo: Algorithm) -> None:
    cluster = machines(LogNormalTime(0.3), latency=0.2, bandwidth=8 * 8 * 4 / 0.1)
    result = run(algo, 4, 96, sgd(lr=0.05), cluster)
    curvature = [
        [gradient(i, k, np.ones(D)) - gradient(i, k, np.zeros(D)) for k in range(12)]
        for i in range(4)
    ]
    offset = [[-gradient(i, k, np.zeros(D)) for k in range(12)] for i in range(4)]
    best = np.sum(offset, axis=(0, 1)) / np.sum(curvature, axis=(0, 1))
    assert np.abs(result.x.mean(axis=0) - best).max() < 0.25 < np.abs(START - best).max()
    assert result.w.sum() == pytest.approx(len(result.w), abs=1e-9)
    assert result.simulation.fabric.in_flight == 0


def test_the_oracle_of_momentum_is_pytorchs() -> None:
    oracle, parameter = Momentum(OPTIM), torch.tensor(START, requires_grad=True)
    reference = torch.optim.SGD([parameter], lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01)
    x = START.copy()
    for k in range(6):
        parameter.grad = torch.from_numpy(gradient(0, k, x))
        x = x - oracle.step(gradient(0, k, x), x)
        reference.step()
        np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("algo", [ADPSGD(BipartiteExponential()), GapAware("none")])
def test_the_budget_is_shared_and_spent_exactly(algo: Algorithm) -> None:
    result = run(
        algo, 6, 20, sgd(), machines(LogNormalTime(0.4), latency=0.3), Faults({2: 5.0}, {})
    )
    taken = [worker.steps_taken for worker in result.workers[:6]]
    assert sum(taken) == 6 * 20
    assert sorted(step for _, rank, step in result.trace if rank < 6) == list(range(120))
    assert (
        taken[2] < 10 < min(taken[:2] + taken[3:])
    )  # the slow one does less, the others its share


@pytest.mark.parametrize("algo", [ADPSGD(BipartiteExponential()), GapAware()])
def test_a_slow_node_hardly_delays_asynchronous_algorithms(algo: Algorithm) -> None:
    normal, slow = (
        run(algo, 8, 40, faults=Faults(nodes, {})).simulation.clock.now for nodes in ({}, {0: 4.0})
    )
    assert normal == 40.0
    assert (
        slow < 40 * 8 / 7.25 + 4.0
    )  # seven nodes and a quarter, and at most one slow gradient at the end


def test_the_learning_rate_follows_the_global_count() -> None:
    seen: dict[int, float] = {}
    run(
        ADPSGD(BipartiteExponential()),
        2,
        8,
        each_step=lambda result, worker: seen.setdefault(worker.step, worker.epoch),
    )
    assert np.allclose(
        [seen[k] for k in range(16)], [k / 8 for k in range(16)]
    )  # 4 steps of 2 nodes per epoch
