"""Every synchronous algorithm equals its matrix recursion, written here with numpy, on a quadratic
in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.tiny import START, D, Momentum, gradient, machines, run, sgd

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.osgp import OSGP
from sgp_runner.algorithms.pipe_sgd import PipeSGD
from sgp_runner.algorithms.ps_sgd import PSSGD
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.algorithms.slowmo import SlowMo
from sgp_runner.core.optim import SGD
from sgp_runner.topology.graphs import (
    BidirectionalExponential,
    BipartiteExponential,
    Complete,
    DirectedExponential,
    RandomMatching,
    Ring,
    StaticExponential,
    Topology,
    Torus,
    matrix,
)

STEPS = 9
OPTIM = sgd(lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01)
SIZES = [1, 2, 3, 4, 6, 8]
DIRECTED: list[Topology] = [DirectedExponential(), BidirectionalExponential(), StaticExponential()]
SYMMETRIC: list[Topology] = [Ring(), Complete(), Torus(), RandomMatching()]


class Oracle:
    """``n`` models [n, D] with local optimizers."""

    def __init__(self, n: int, optim: SGD = OPTIM) -> None:
        self.n = n
        self.x = np.tile(START, (n, 1))
        self.w = np.ones(n)
        self.momenta = [Momentum(optim) for _ in range(n)]

    def d(self, k: int) -> np.ndarray:
        """Local steps [n, D] at the de-biased models."""
        z = self.x / self.w[:, None]
        return np.stack([self.momenta[i].step(gradient(i, k, z[i]), z[i]) for i in range(self.n)])

    def mean_g(self, k: int) -> np.ndarray:
        return np.mean([gradient(i, k, self.x[i]) for i in range(self.n)], axis=0)

    def p(self, topology: Topology, k: int) -> np.ndarray:
        return np.array(matrix(topology, self.n, k))


def assert_equal(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("topology", [*DIRECTED, *SYMMETRIC], ids=str)
def test_sgp(topology: Topology, n: int) -> None:
    check_sgp(topology, n)


@pytest.mark.parametrize("n", [3, 4, 6, 8])
def test_sgp_with_two_peers(n: int) -> None:
    check_sgp(DirectedExponential(peers=2), n)


def check_sgp(topology: Topology, n: int) -> None:
    oracle = Oracle(n)
    for k in range(STEPS):
        p = oracle.p(topology, k)
        oracle.x, oracle.w = p @ (oracle.x - oracle.d(k)), p @ oracle.w
    result = run(SGP(topology), n, STEPS, OPTIM)
    assert_equal(result.x, oracle.x / oracle.w[:, None])
    assert_equal(result.w, oracle.w)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("topology", SYMMETRIC, ids=str)
def test_d_psgd(topology: Topology, n: int) -> None:
    oracle, adapt_first = Oracle(n), Oracle(n)
    for k in range(STEPS):
        oracle.x = oracle.p(topology, k) @ oracle.x - oracle.d(k)
        adapt_first.x = oracle.p(topology, k) @ (adapt_first.x - adapt_first.d(k))
    assert_equal(run(DPSGD(topology), n, STEPS, OPTIM).x, oracle.x)
    assert_equal(run(DPSGD(topology, order="adapt_then_combine"), n, STEPS, OPTIM).x, adapt_first.x)


def test_d_psgd_on_pairs() -> None:
    oracle = Oracle(6)
    for k in range(STEPS):
        oracle.x = oracle.p(BipartiteExponential(), k) @ oracle.x - oracle.d(k)
    assert_equal(run(DPSGD(BipartiteExponential()), 6, STEPS, OPTIM).x, oracle.x)


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


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("tau", [1, 2, 4])
def test_local_sgd(tau: int, n: int) -> None:
    oracle = Oracle(n)
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % tau == 0 or k == STEPS - 1:
            oracle.x = np.tile(oracle.x.mean(axis=0), (n, 1))
    assert_equal(run(LocalSGD(tau), n, STEPS, OPTIM).x, oracle.x)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_pipe_sgd_applies_the_mean_gradient_of_k_minus_1_steps_ago(depth: int, n: int) -> None:
    oracle, momentum, gradients = Oracle(n), Momentum(OPTIM), []
    for k in range(STEPS):
        gradients.append(oracle.mean_g(k))
        if k >= depth - 1:
            oracle.x = oracle.x - momentum.step(gradients[k - (depth - 1)], oracle.x[0])
    for g in gradients[STEPS - (depth - 1) :]:  # what is left in the pipeline
        oracle.x = oracle.x - momentum.step(g, oracle.x[0])
    assert_equal(run(PipeSGD(depth=depth), n, STEPS, OPTIM).x, oracle.x)


def test_pipe_sgd_warms_up_synchronously() -> None:
    """Four steps per epoch; with one epoch of warm-up steps 0 to 3 are synchronous, and step 4
    applies nothing yet.
    """
    oracle, momentum, gradients = Oracle(2), Momentum(OPTIM), []
    for k in range(STEPS):
        gradients.append(oracle.mean_g(k))
        if k != 4:
            oracle.x = oracle.x - momentum.step(gradients[k if k < 4 else k - 1], oracle.x[0])
    oracle.x = oracle.x - momentum.step(gradients[-1], oracle.x[0])
    assert_equal(run(PipeSGD(depth=2, warmup_epochs=1), 2, STEPS, OPTIM).x, oracle.x)


def osgp_one_step_late(
    n: int, layout: Callable[[Oracle, int], tuple[np.ndarray, np.ndarray]]
) -> Oracle:
    """Messages of step k are folded in at the end of step k + 1; ``layout`` returns numerators and
    weights to share.
    """
    oracle = Oracle(n)
    flying = np.zeros((n, D + 1))
    for k in range(STEPS):
        x, w = layout(oracle, k)
        mass = np.column_stack([x, w])
        p = oracle.p(DirectedExponential(), k)
        keep = np.diag(np.diag(p))
        arrived, flying = flying, (p - keep) @ mass
        mass = keep @ mass + arrived
        oracle.x, oracle.w = mass[:, :-1], mass[:, -1]
    oracle.x, oracle.w = oracle.x + flying[:, :-1], oracle.w + flying[:, -1]  # drained at the end
    return oracle


@pytest.mark.parametrize("tau", [1, 2, 4])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_osgp_with_messages_always_one_step_late(n: int, tau: int) -> None:
    weights: list[float] = []
    oracle = osgp_one_step_late(n, lambda oracle, k: (oracle.x - oracle.d(k), oracle.w))
    late = machines(seconds=1.0, latency=0.5)
    result = run(
        OSGP(DirectedExponential(), tau=tau),
        n,
        STEPS,
        OPTIM,
        late,
        each_step=lambda result, worker: weights.append(float(worker.push_sum[-1])),
    )
    assert_equal(result.x, oracle.x / oracle.w[:, None])
    assert_equal(result.w, oracle.w)
    assert weights[-1] == pytest.approx(2 / 3, abs=2e-3)  # halves the distance every step


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_osgp_as_released_is_y_p_y_minus_d(n: int) -> None:
    """Sent before the gradient and folded in after it: y' = P y - d(y); in the version of 2019 half
    of d.
    """
    for layout, share in (("released", 1.0), ("released_2019", 0.5)):
        oracle = Oracle(n)
        for k in range(STEPS):
            oracle.x = oracle.p(DirectedExponential(), k) @ oracle.x - share * oracle.d(k)
        result = run(OSGP(DirectedExponential(), tau=0, layout=layout), n, STEPS, OPTIM)  # type: ignore[arg-type]
        assert_equal(result.x, oracle.x)
        assert_equal(result.w, np.ones(n))


def test_biased_osgp_never_divides_by_the_weight() -> None:
    n, late = 4, machines(seconds=1.0, latency=0.5)

    def biased(oracle: Oracle, k: int) -> tuple[np.ndarray, np.ndarray]:
        oracle.w = np.ones(n)
        return oracle.x - oracle.d(k), oracle.w

    oracle = osgp_one_step_late(n, biased)
    assert_equal(
        run(OSGP(DirectedExponential(), push_sum_weight=False), n, STEPS, OPTIM, late).x, oracle.x
    )


def test_biased_osgp_as_released_takes_its_gradient_at_the_kept_share() -> None:
    """With the sum never divided, ``y' = P y - d(y / 2)`` for one peer."""
    oracle = Oracle(4)
    for k in range(STEPS):
        y, oracle.x = oracle.x, oracle.x / 2
        oracle.x = oracle.p(DirectedExponential(), k) @ y - oracle.d(k)
    result = run(
        OSGP(DirectedExponential(), tau=0, layout="released", push_sum_weight=False),
        4,
        STEPS,
        OPTIM,
    )
    assert_equal(result.x, oracle.x)
    assert_equal(result.w, np.ones(4))


@pytest.mark.parametrize("interval", [2, 3])
def test_osgp_mixes_every_interval_steps_and_leaves_out_no_hop(interval: int) -> None:
    """Without delay; four nodes have two hops, of which every second step alone would only ever use
    the first.
    """
    oracle = Oracle(4)
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if k % interval == 0:
            oracle.x = oracle.p(DirectedExponential(), k // interval) @ oracle.x
    assert_equal(
        run(OSGP(DirectedExponential(), tau=0, interval=interval), 4, STEPS, OPTIM).x, oracle.x
    )


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
    for k in range(STEPS - 1):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % tau == 0:
            oracle.x = np.tile(oracle.x.mean(axis=0), (n, 1))
            mean = np.mean([momentum.v for momentum in oracle.momenta], axis=0)
            for momentum in oracle.momenta:
                momentum.v = mean
    assert_equal(
        run(SlowMo(LocalSGD(None), tau=tau, beta=0.0, buffers="average"), n, STEPS - 1, OPTIM).x,
        oracle.x,
    )
