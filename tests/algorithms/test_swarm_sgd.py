"""SwarmSGD: by hand, event by event; the sum that it conserves; D-PSGD on random matchings."""

from __future__ import annotations

import heapq
from collections import Counter

import numpy as np
import pytest
from helpers.conservation import ROUGH, tallied
from helpers.recursion import OPTIM, STEPS, assert_equal, same
from helpers.tiny import START, D, Momentum, gradient, machines, run, sgd

from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.algorithms.swarm_sgd import SwarmSGD
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.topology.graphs import Complete, RandomMatching, Ring

ALGORITHMS = [
    SwarmSGD(Complete()),
    SwarmSGD(Complete(), 3, "geometric"),
    SwarmSGD(Ring(), 1, blocking=True),
    SwarmSGD(Complete(), 3, "geometric", blocking=True),
    SwarmSGD(RandomMatching(), 2),
]


def by_hand(algo: SwarmSGD, seconds: tuple[float, ...], total: int) -> np.ndarray:
    """Models of workers that take ``seconds`` for a gradient; messages take no time."""
    n = len(seconds)
    x, s, momenta = [START] * n, [START] * n, [Momentum(OPTIM) for _ in range(n)]
    at, replies = [START] * n, [START] * n
    inner, rounds, batch, begun, ends = [0] * n, [0] * n, [-1] * n, 0, []

    def exchange(i: int, j: int, mine: np.ndarray) -> np.ndarray:
        """Return the change of i; j has already made the opposite change."""
        theirs = x[j] if algo.blocking else s[j]
        change = (mine - theirs) / 2
        x[j], s[j] = x[j] + change, s[j] + change
        return -change

    def begin(i: int, now: float) -> None:
        nonlocal begun
        if begun == total:
            if inner[i]:
                average(i)
            return
        begun, batch[i] = begun + 1, batch[i] + 1
        at[i] = x[i]
        heapq.heappush(ends, (now + seconds[i], i))
        if not inner[i]:
            s[i] = x[i]
            j = algo.partner(i, n, rounds[i])
            if j is not None and not algo.blocking:
                replies[i] = exchange(i, j, s[i])

    def average(i: int) -> None:
        j = algo.partner(i, n, rounds[i])
        if j is not None:
            x[i] = x[i] + (exchange(i, j, x[i]) if algo.blocking else replies[i])
        inner[i], rounds[i] = 0, rounds[i] + 1

    for i in range(n):
        begin(i, 0.0)
    while ends:
        now, i = heapq.heappop(ends)
        x[i] = x[i] - momenta[i].step(gradient(i, batch[i], at[i]), x[i])
        inner[i] += 1
        if inner[i] == algo.local_steps(i, rounds[i]):
            average(i)
        begin(i, now)
    return np.stack(x)


@pytest.mark.parametrize("seconds", [(0.58, 0.75, 1.51, 3.33), (1.0, 7.3, 1.13)], ids=str)
@pytest.mark.parametrize("algo", ALGORITHMS, ids=str)
def test_swarm_sgd_by_hand(algo: SwarmSGD, seconds: tuple[float, ...]) -> None:
    n = len(seconds)
    result = run(algo, n, 20, OPTIM, machines(factors=dict(enumerate(seconds))))
    assert_equal(result.x, by_hand(algo, seconds, 20 * n))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_swarm_sgd_on_random_matchings_is_d_psgd(n: int) -> None:
    """With equally fast workers, and one step before each average.

    Without weight decay, which is that of the parameters to which a step is applied.
    """
    optim = sgd(lr=0.2, momentum=0.9, nesterov=True)
    assert same(SwarmSGD(RandomMatching(), 1), DPSGD(RandomMatching()), n, optim)
    if n > 1:
        assert not same(SwarmSGD(RandomMatching(), 2), DPSGD(RandomMatching()), n, optim)


def test_swarm_sgd_of_one_worker_is_sgd() -> None:
    assert same(SwarmSGD(Complete(), 3), LocalSGD(None), 1)


@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
@pytest.mark.parametrize("algo", ALGORITHMS, ids=str)
def test_swarm_sgd_conserves_the_sum(
    algo: SwarmSGD, name: str, cluster: Cluster, faults: Faults
) -> None:
    optim = tallied()
    result = run(algo, 6, 10, optim, cluster, faults)
    assert_equal(result.x.sum(axis=0), 6 * START - optim.total.numpy())
    assert sum(worker.steps_taken for worker in result.workers) == 60


@pytest.mark.parametrize("blocking", [False, True])
def test_bytes_of_swarm_sgd(blocking: bool) -> None:
    """A model each way for every average, in float64; the last one may follow one step."""
    result = run(SwarmSGD(Complete(), 3, blocking=blocking), 4, 3 * STEPS)
    averages = sum(worker.counter("averages") for worker in result.workers)
    assert averages == 4 * STEPS
    assert sum(worker.comm.num_bytes_sent for worker in result.workers) == 8 * D * 2 * averages


def test_draws_of_swarm_sgd() -> None:
    """Partners are uniform, and geometric numbers have the right mean and variance."""
    algo = SwarmSGD(Complete(), 4, "geometric")
    partners = Counter(algo.partner(2, 4, t) for t in range(3000))
    assert {*partners} == {0, 1, 3} and min(partners.values()) > 900
    steps = np.array([algo.local_steps(1, t) for t in range(3000)])
    assert steps.min() == 1 and abs(steps.mean() - 4) < 0.2 and abs(steps.var() - 12) < 1.2
    assert [SwarmSGD(Complete(), 3).local_steps(0, t) for t in range(3)] == [3, 3, 3]


@pytest.mark.parametrize("nodes", [2, 7, 16])
def test_goodbyes_of_swarm_sgd_pass_through_rank_0(nodes: int) -> None:
    result = run(SwarmSGD(Ring(), period=10**6), nodes, 3)
    goodbyes = [worker.counter("goodbyes") for worker in result.workers]
    assert goodbyes == [nodes - 1] + [1] * (nodes - 1)
