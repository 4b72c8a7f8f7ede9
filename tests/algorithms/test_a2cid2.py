"""A2CiD2: by hand, event by event; AD-PSGD without mixing; its rates, and faster consensus."""

from __future__ import annotations

import heapq
from math import cos, exp, pi, sqrt

import numpy as np
import pytest
from helpers.conservation import Scattering, tallied
from helpers.recursion import LATE, OPTIM, STEPS, assert_equal
from helpers.tiny import START, D, Momentum, gradient, machines, run

from sgp_runner.algorithms.a2cid2 import A2CiD2, consensus_rates
from sgp_runner.algorithms.ad_psgd import ADPSGD, partner
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.optim import Constant
from sgp_runner.topology.graphs import BipartiteExponential, Ring, Topology


class ByHand:
    """Workers that take ``seconds`` for a gradient; messages take no time."""

    def __init__(self, algo: A2CiD2, seconds: tuple[float, ...]) -> None:
        n = len(seconds)
        self.algo, self.n, self.seconds = algo, n, seconds
        self.eta, self.alpha = consensus_rates(algo.topology, n, algo.averages_per_gradient)
        self.x, self.other = [START] * n, [START] * n
        self.mixed, self.known, self.averages = [0.0] * n, [False] * n, [0] * n

    def mix(self, i: int, now: float) -> None:
        since, self.mixed[i] = now - self.mixed[i], now
        q = exp(-2 * self.eta * since / self.seconds[i]) if self.known[i] else 1.0
        x, other = self.x[i], self.other[i]
        self.x[i], self.other[i] = (
            ((1 + q) * x + (1 - q) * other) / 2,
            ((1 - q) * x + (1 + q) * other) / 2,
        )

    def average(self, i: int, now: float) -> None:
        j = partner(self.algo.topology, i, self.n, self.averages[i])
        self.averages[i] += 1
        self.mix(i, now)
        self.mix(j, now)
        b = self.x[j] - self.x[i]
        self.x[i], self.x[j] = self.x[i] + b / 2, self.x[j] - b / 2
        self.other[i], self.other[j] = (
            self.other[i] + self.alpha * b,
            self.other[j] - self.alpha * b,
        )

    def run(self, total: int) -> np.ndarray:
        n, ends, batch = self.n, [], [-1] * self.n
        at, momenta, begun = [START] * n, [Momentum(OPTIM) for _ in range(n)], 0
        starting = [(i, 0.0) for i in range(n)]
        while starting or ends:
            if not starting:
                now, i = heapq.heappop(ends)
                self.mix(i, now)
                self.known[i] = True
                d = momenta[i].step(gradient(i, batch[i], at[i]), self.x[i])
                self.x[i], self.other[i] = self.x[i] - d, self.other[i] - d
                starting.append((i, now))
            i, now = starting.pop(0)
            if begun == total:
                continue
            begun, batch[i], at[i] = begun + 1, batch[i] + 1, self.x[i]
            heapq.heappush(ends, (now + self.seconds[i], i))
            due = (batch[i] + 1) * self.algo.averages_per_gradient * n / (n // 2)
            while i % 2 and self.averages[i] < due:
                self.average(i, now)
        return np.stack(self.x)


@pytest.mark.parametrize("seconds", [(0.58, 0.75, 1.51, 3.33), (1.0, 7.30171)], ids=str)
@pytest.mark.parametrize("averages", [0.5, 1.0, 1.75])
@pytest.mark.parametrize("topology", [Ring(), BipartiteExponential()], ids=str)
def test_a2cid2_by_hand(topology: Topology, averages: float, seconds: tuple[float, ...]) -> None:
    algo, n = A2CiD2(topology, averages), len(seconds)
    result = run(algo, n, 12, OPTIM, machines(factors=dict(enumerate(seconds))))
    assert_equal(result.x, ByHand(algo, seconds).run(12 * n))


@pytest.mark.parametrize(("topology", "n"), [(Ring(), 6), (BipartiteExponential(), 8)])
@pytest.mark.parametrize("cluster", LATE, ids=["at once", "log-normal", "gamma"])
@pytest.mark.parametrize("averages", [0.5, 2.0])
def test_a2cid2_without_mixing_is_ad_psgd(
    topology: Topology, n: int, averages: float, cluster: Cluster
) -> None:
    plain = run(ADPSGD(topology, averages), n, STEPS, OPTIM, cluster)
    mixing = run(A2CiD2(topology, averages, eta=0.0), n, STEPS, OPTIM, cluster)
    assert np.array_equal(mixing.x, plain.x) and mixing.trace == plain.trace
    assert not np.allclose(run(A2CiD2(topology, averages), n, STEPS, OPTIM, cluster).x, plain.x)


@pytest.mark.parametrize("averages", [0.5, 1.0])
@pytest.mark.parametrize("n", [4, 6, 16])
def test_rates_of_a2cid2_on_a_ring(n: int, averages: float) -> None:
    """A worker takes part in twice as many averages per gradient as there are of all workers."""
    r = 2 * averages
    chi_1, chi_2 = 1 / (r * (1 - cos(2 * pi / n))), (n - 1) / (n * r)
    expected = 1 / (2 * sqrt(chi_1 * chi_2)), sqrt(chi_1 / chi_2) / 2
    assert consensus_rates(Ring(), n, averages) == pytest.approx(expected, rel=1e-12)
    if (n, averages) == (16, 0.5):
        assert expected == pytest.approx((0.1425, 1.872), abs=5e-4)


def test_a2cid2_conserves_the_sum_of_models_mixed_to_the_same_time() -> None:
    """With equally fast workers, and messages that take no time."""
    optim = tallied()
    result = run(A2CiD2(Ring(), 0.75), 6, 10, optim, machines())
    eta, _ = consensus_rates(Ring(), 6, 0.75)
    total = np.zeros(D)
    for worker in result.workers:
        q = exp(-2 * eta * (20.0 - worker.state["mixed_at"]))
        total += ((1 + q) * worker.params + (1 - q) * worker.state["x_tilde"]).numpy() / 2
    assert_equal(total, 6 * START - optim.total.numpy())


def test_a2cid2_agrees_faster_than_ad_psgd_on_a_ring() -> None:
    spreads = [
        run(algo, 16, 60, Scattering(Constant(), momentum=0.0)).x.std(axis=0).max()
        for algo in (A2CiD2(Ring()), A2CiD2(Ring(), eta=0.0))
    ]
    assert spreads[0] < spreads[1] / 10 < 0.1


def test_bytes_of_a2cid2() -> None:
    """A model each way for every average, in float64; the second vector is never sent."""
    result = run(A2CiD2(Ring(), 1.0), 4, STEPS)
    averages = sum(worker.counter("averages") for worker in result.workers)
    assert averages == 4 * STEPS
    assert sum(worker.comm.num_bytes_sent for worker in result.workers) == 8 * D * 2 * averages


@pytest.mark.parametrize("nodes", [2, 7, 16])
@pytest.mark.parametrize("algo", [ADPSGD, A2CiD2])
def test_as_many_goodbyes_as_workers(algo: type[ADPSGD] | type[A2CiD2], nodes: int) -> None:
    result = run(algo(BipartiteExponential()), nodes, 3)  # type: ignore[arg-type]
    averages = sum(worker.counter("averages") for worker in result.workers)
    sent = sum(worker.comm.num_sent for worker in result.workers)
    passive = nodes - nodes // 2
    assert sent - 2 * averages == nodes // 2 + passive - 1
