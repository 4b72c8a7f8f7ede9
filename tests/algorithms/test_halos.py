"""HALoS by hand, message by message, and Async DiLoCo as one region of it."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from helpers.recursion import DelayedNesterov, assert_equal
from helpers.tiny import START, D, Momentum, gradient, machines, run, sgd

from sgp_runner.algorithms.async_diloco import AsyncDiLoCo
from sgp_runner.algorithms.halos import HALoS
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.regions import Region, region_of_each

OPTIM = sgd(lr=0.2, momentum=0.9, nesterov=True)
# No two messages arrive at the same time.
SECONDS = (0.58, 0.75113, 1.51317, 3.33191, 0.6317)


class RegionByHand:
    """A regional server."""

    def __init__(self, algo: HALoS, workers: int) -> None:
        self.outer = DelayedNesterov(algo.lr, algo.momentum, algo.delay)
        self.ref, self.since, self.in_flight, self.working, self.unsent = (
            START,
            0,
            False,
            workers,
            0,
        )


class ByHand:
    """All workers and servers; every message takes ``latency``, a gradient of i ``seconds[i]``."""

    def __init__(self, algo: HALoS, seconds: tuple[float, ...], latency: float, total: int) -> None:
        self.algo, self.n, self.seconds, self.latency = algo, len(seconds), seconds, latency
        self.left, self.events, self.updates = total, list[Any](), 0
        self.above = DelayedNesterov(algo.global_lr, algo.global_momentum, algo.global_delay)
        of = [algo.region(i, self.n) for i in range(self.n)]
        self.regions = [RegionByHand(algo, of.count(r)) for r in range(algo.regions)]
        self.of = of
        self.x, self.start = [START] * self.n, [START] * self.n
        self.inner, self.batch = [0] * self.n, [0] * self.n
        self.momenta = [Momentum(OPTIM) for _ in range(self.n)]

    def at(self, time: float, what: str, *arguments: Any) -> None:
        heapq.heappush(self.events, (time, len(self.events), what, arguments))

    def begin(self, i: int, now: float) -> None:
        if self.left:
            self.left -= 1
            self.at(now + self.seconds[i], "end", i)
        elif self.inner[i]:
            self.push(i, now)
        else:
            self.at(now + self.latency, "goodbye", self.of[i])

    def push(self, i: int, now: float) -> None:
        self.at(now + self.latency, "change", i, self.start[i] - self.x[i], self.inner[i])

    def end(self, now: float, i: int) -> None:
        self.x[i] = self.x[i] - self.momenta[i].step(
            gradient(i, self.batch[i], self.x[i]), self.x[i]
        )
        self.batch[i], self.inner[i] = self.batch[i] + 1, self.inner[i] + 1
        if self.inner[i] == self.algo.inner_steps(i):
            self.push(i, now)
        else:
            self.begin(i, now)

    def change(self, now: float, i: int, g: np.ndarray, steps: int) -> None:
        region = self.regions[self.of[i]]
        region.outer.arrive(g)
        region.since, region.unsent = region.since + 1, region.unsent + steps
        self.at(now + self.latency, "reply", i, region.outer.x)
        if region.since >= self.algo.arrivals and not region.in_flight:
            self.up(now, region)

    def up(self, now: float, region: RegionByHand) -> None:
        region.in_flight, region.unsent = True, 0
        self.at(now + self.latency, "update", region, region.ref - region.outer.x)

    def reply(self, now: float, i: int, theta: np.ndarray) -> None:
        self.x[i], self.start[i], self.inner[i] = theta, theta, 0
        self.begin(i, now)

    def update(self, now: float, region: RegionByHand, g: np.ndarray) -> None:
        self.updates += 1
        self.above.arrive(g)
        self.at(now + self.latency, "answer", region, self.above.x)

    def answer(self, now: float, region: RegionByHand, x: np.ndarray) -> None:
        region.outer.x = (1 - self.algo.alpha) * region.outer.x + self.algo.alpha * x
        region.ref, region.since, region.in_flight = region.outer.x, 0, False
        self.finish(now, region)

    def goodbye(self, now: float, r: int) -> None:
        self.regions[r].working -= 1
        self.finish(now, self.regions[r])

    def finish(self, now: float, region: RegionByHand) -> None:
        if not region.working and not region.in_flight and region.unsent:
            self.up(now, region)

    def run(self) -> np.ndarray:
        for i in range(self.n):
            self.begin(i, 0.0)
        while self.events:
            now, _, what, arguments = heapq.heappop(self.events)
            getattr(self, what)(now, *arguments)
        return np.stack([*(region.outer.x for region in self.regions), self.above.x])


ALGORITHMS = [
    HALoS(2, 2, lr=0.7, delay=3, arrivals=3),
    HALoS(2, 3, lr=0.5, delay=1, momentum=0.0, arrivals=1, alpha=0.6, global_momentum=0.9),
    HALoS(1, 2, lr=0.7, delay=2, arrivals=4),
    HALoS(3, 4, SECONDS, lr=0.7, delay=2, arrivals=2, global_delay=1, global_lr=1.0),
]


@pytest.mark.parametrize("latency", [0.0, 0.0317, 0.9173])
@pytest.mark.parametrize("algo", ALGORITHMS, ids=str)
def test_halos_by_hand(algo: HALoS, latency: float) -> None:
    result = run(algo, 5, 20, OPTIM, machines(latency=latency, factors=dict(enumerate(SECONDS))))
    hand = ByHand(algo, SECONDS, latency, 100)
    assert_equal(result.x[5:], hand.run())
    taken = [worker.steps_taken for worker in result.workers]
    assert taken[-1] == sum(taken[:5]) == 100
    assert result.workers[-1].counter("arrivals") == hand.updates


@pytest.mark.parametrize(
    "times", [machines(factors=dict(enumerate(SECONDS))), machines(LogNormalTime(0.5))]
)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("arrivals", [1, 3, 100])
def test_one_region_of_halos_is_async_diloco(times: Cluster, arrivals: int, alpha: float) -> None:
    """With instant links, and a global server that adds up updates."""
    algo = HALoS(1, 3, None, 0.7, 0.9, 4, arrivals, alpha, 1.0, 0.0, 1)
    plain = run(AsyncDiLoCo(3, delay=4), 4, 20, OPTIM, times).x
    result = run(algo, 4, 20, OPTIM, times)
    assert_equal(result.x[:5], plain)
    assert_equal(result.x[5], plain[4])


def test_bytes_of_halos() -> None:
    """In float64: a change and a number of steps up, a model down, on each level."""
    result = run(HALoS(2, 2, arrivals=3), 4, 12, OPTIM, machines(factors={1: 1.1}))
    first, second, above = (worker.counter("arrivals") for worker in result.workers[4:])
    arrivals = first + second
    assert arrivals >= 24 and above == -(-first // 3) - (-second // 3)
    sent = [worker.comm.num_bytes_sent for worker in result.workers]
    assert sum(sent[:4]) == 8 * (D + 1) * arrivals
    assert sum(sent[4:6]) == 8 * D * arrivals + 8 * (D + 1) * above
    assert sent[6] == 8 * D * above


def test_inner_steps_and_regions_of_halos() -> None:
    algo = HALoS(3, 8, (1.0, 0.5, 0.26, 0.01, 1.0))
    assert [algo.inner_steps(i) for i in range(5)] == [8, 4, 3, 1, 8]
    assert [algo.region(i, 5) for i in range(5)] == [0, 0, 1, 1, 2]
    assert algo.servers == 4
    regions = [Region(n, 1.0, 1.0, 0.0) for n in (2, 2, 1)]
    assert region_of_each(regions, 9) == [0, 0, 1, 1, 2, 0, 1, 2, 2]
    assert region_of_each(regions, 6) == [0, 0, 1, 1, 2, 2]
