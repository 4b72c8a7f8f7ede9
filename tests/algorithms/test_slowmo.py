"""SlowMo against its recursions and against what it must equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from helpers.conservation import ROUGH, tallied
from helpers.recursion import OFF, OPTIM, SHIFTS, STEPS, Oracle, assert_equal, same
from helpers.tiny import START, D, Momentum, gradient, run, sgd

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.hybrid import Hybrid
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.optim import (
    SGD,
    Adam,
    Cosine,
    InverseSqrt,
)
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import (
    DirectedExponential,
)
from sgp_runner.utils.errors import RankFailed


@pytest.mark.parametrize("optim", [OPTIM, Adam(InverseSqrt(warmup_steps=4), lr=0.1)])
@pytest.mark.parametrize("tau", [1, 3, 5])
def test_slowmo_without_slow_momentum_over_local_steps_is_local_sgd(
    optim: SGD | Adam, tau: int
) -> None:
    assert same(SlowMo(LocalSGD(None), tau=tau, beta=0.0, buffers="keep"), LocalSGD(tau), 3, optim)


def test_slowmo_at_every_step_of_plain_sgd_is_momentum() -> None:
    plain, heavy = sgd(lr=0.2), sgd(lr=0.2, momentum=0.7)
    slow = run(SlowMo(ARSGD(), tau=1, beta=0.7), 3, STEPS, plain).x
    assert_equal(slow, run(ARSGD(), 3, STEPS, heavy).x)


def test_slowmo_on_one_node_without_slow_momentum_is_lookahead() -> None:
    x, slow = START.copy(), START.copy()
    for k in range(STEPS):
        x = x - 0.2 * gradient(0, k, x)
        if (k + 1) % 4 == 0:
            x = slow = slow + 0.5 * (x - slow)
    result = run(SlowMo(LocalSGD(None), tau=4, alpha=0.5, beta=0.0), 1, STEPS, sgd(lr=0.2)).x[0]
    np.testing.assert_allclose(result, x, rtol=0, atol=1e-12)


def test_periods_of_a_worker() -> None:
    """Two steps, three periods of four, and a shorter one; one more entry after the last step."""
    began: list[list[int]] = []

    @dataclass(frozen=True)
    class Periods(Algorithm):
        title = "Periods"

        async def run(self, worker: Worker) -> None:
            await LocalSGD(None).run(worker.limit(2))
            for _ in range(2):
                began.append([])
                for fast in worker.periods(4, 2):
                    began[-1].append(worker.steps_taken)
                    await LocalSGD(None).run(fast)

    run(Periods(), 1, 17, OPTIM)
    assert began == [[2, 6, 10, 14], [17]]


def test_slowmo_survives_a_learning_rate_of_zero() -> None:
    result = run(SlowMo(LocalSGD(None), tau=2), 2, 4, sgd(schedule=OFF))
    assert np.array_equal(result.x, np.tile(START, (2, 1)))


def test_slowmo_takes_the_learning_rate_of_the_last_fast_step() -> None:
    optim = sgd(lr=0.2, schedule=Cosine(warmup_epochs=0))
    result = run(SlowMo(LocalSGD(None), tau=2, beta=0.5, alpha=0.7), 1, 4, optim)
    x, x0, u = START.copy(), START.copy(), np.zeros(D)
    rates = [
        0.2 * 0.5 * (1 + np.cos(np.pi * k / 4)) for k in range(4)
    ]  # four steps are the whole run
    for k, lr in enumerate(rates):
        x = x - lr * gradient(0, k, x)
        if k % 2:
            u = 0.5 * u + (x0 - x) / lr
            x = x0 = x0 - 0.7 * lr * u
    np.testing.assert_allclose(result.x[0], x, rtol=0, atol=1e-12)


def test_slowmo_over_local_adam_keeps_each_nodes_buffers() -> None:
    """While the learning rate warms up: a movement is divided by the rate that made it."""
    nodes, tau, beta = 2, 3, 0.5
    optim = Adam(InverseSqrt(warmup_steps=6), lr=0.1)
    x, x0, u = np.tile(START, (nodes, 1)), START.copy(), np.zeros(D)
    mean, square = np.zeros((2, nodes, D))
    for k in range(STEPS):
        lr = 0.1 * ((k + 1) / 6 if k + 1 < 6 else (6 / (k + 1)) ** 0.5)
        g = np.array([gradient(node, k, x[node]) for node in range(nodes)])
        mean, square = 0.9 * mean + 0.1 * g, 0.98 * square + 0.02 * g**2
        x = x - lr * (mean / (1 - 0.9 ** (k + 1))) / (
            np.sqrt(square / (1 - 0.98 ** (k + 1))) + 1e-8
        )
        if (k + 1) % tau == 0:
            u = beta * u + (x0 - x.mean(axis=0)) / lr
            x0 = x0 - lr * u
            x = np.tile(x0, (nodes, 1))
    np.testing.assert_allclose(
        run(SlowMo(LocalSGD(None), tau=tau, beta=beta), nodes, STEPS, optim).x,
        x,
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("base", [OSGP(SHIFTS), OSGP(SHIFTS, tau=3, layout="released")], ids=str)
@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
def test_exact_averages_conserve_the_mass_of_push_sum(
    base: OSGP, name: str, cluster: Cluster, faults: Faults
) -> None:
    """Without slow momentum the network's numerators lose just the local steps, also where weights
    differ before an average.
    """
    unequal = 0.0
    exact, inexact = (
        SlowMo(base, tau=4, beta=0.0, exact_average=exact, buffers="keep")
        for exact in (True, False)
    )
    for algo in (exact, inexact, Hybrid(base, ARSGD(average="parameters"), switch_epoch=1.5)):
        optim = tallied()
        result = run(algo, 6, 10, optim, cluster, faults)
        assert result.w.sum() == pytest.approx(6, abs=1e-9)
        np.testing.assert_allclose(
            (result.x * result.w[:, None]).sum(axis=0), 6 * START - optim.total.numpy(), atol=1e-9
        )
        unequal = max(unequal, float(np.ptp(result.w)))
    assert unequal > 0.1 or name == "late"


@dataclass(frozen=True)
class Leaking(SGP):
    """Loses a part of its mass."""

    async def run(self, worker: Worker) -> None:
        await super().run(worker)
        if worker.rank == 1:
            worker.push_sum[-1] *= 0.9


@pytest.mark.parametrize(
    "algo",
    [SlowMo(Leaking(SHIFTS), tau=4), Hybrid(Leaking(SHIFTS), ARSGD(), switch_epoch=1.0)],
    ids=str,
)
def test_an_exact_average_notices_lost_mass(algo: Algorithm) -> None:
    with pytest.raises(
        RankFailed, match=r"push-sum mass was lost: the mean weight of the workers is 0\.975, not 1"
    ):
        run(algo, 4, 12, OPTIM)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("more", [0, 1, 2])
def test_slowmo_over_local_sgd_is_block_momentum(n: int, more: int) -> None:
    """BMUF: the block's mean movement goes through a momentum filter; optimizer buffers are reset
    after each block.

    An incomplete last block, of so many ``more`` steps, ends with the mean alone.
    """
    tau, alpha, beta = 3, 0.8, 0.6
    oracle, x0, u = Oracle(n), START.copy(), np.zeros(D)
    for block in range(STEPS // tau):
        oracle.momenta = [Momentum(OPTIM) for _ in range(n)]
        for k in range(block * tau, (block + 1) * tau):
            oracle.x = oracle.x - oracle.d(k)
        u = beta * u + (x0 - oracle.x.mean(axis=0)) / OPTIM.lr
        x0 = x0 - alpha * OPTIM.lr * u
        oracle.x = np.tile(x0, (n, 1))
    oracle.momenta = [Momentum(OPTIM) for _ in range(n)]
    for k in range(STEPS, STEPS + more):
        oracle.x = oracle.x - oracle.d(k)
    oracle.x = np.tile(oracle.x.mean(axis=0), (n, 1))
    assert_equal(
        run(SlowMo(LocalSGD(None), tau=tau, alpha=alpha, beta=beta), n, STEPS + more, OPTIM).x,
        oracle.x,
    )


def test_slowmo_without_the_exact_average_keeps_a_momentum_per_node() -> None:
    n, tau, beta = 3, 3, 0.6
    oracle = Oracle(n)
    x0, u = oracle.x, np.zeros((n, D))
    for k in range(STEPS + 2):  # the last two are no block
        oracle.x = oracle.p(DirectedExponential(), k) @ (oracle.x - oracle.d(k))
        if (k + 1) % tau:
            continue
        u = beta * u + (x0 - oracle.x) / OPTIM.lr
        oracle.x = x0 = x0 - OPTIM.lr * u
    algo = SlowMo(
        SGP(DirectedExponential()), tau=tau, beta=beta, exact_average=False, buffers="keep"
    )
    assert_equal(run(algo, n, STEPS + 2, OPTIM).x, oracle.x)


def test_slowmo_averages_buffers_on_request() -> None:
    n, tau = 3, 2
    oracle = Oracle(n)
    for _ in oracle.exchanges(STEPS, tau):
        oracle.x = np.tile(oracle.x.mean(axis=0), (n, 1))
        mean = np.mean([momentum.v for momentum in oracle.momenta], axis=0)
        for momentum in oracle.momenta:
            momentum.v = mean
    assert_equal(
        run(SlowMo(LocalSGD(None), tau=tau, beta=0.0, buffers="average"), n, STEPS, OPTIM).x,
        oracle.x,
    )


def test_diloco_with_a_heavy_ball_is_slowmo_at_a_constant_rate() -> None:
    heavy = DiLoCo(4, lr=0.7, momentum=0.6, nesterov=False)
    assert same(heavy, SlowMo(LocalSGD(None), tau=4, alpha=0.7, beta=0.6, buffers="keep"), 3)
