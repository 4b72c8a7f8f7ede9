"""Asynchronous DiLoCo is DiLoCo where all workers are equally fast, and otherwise the recursion of
Delayed Nesterov in the order of arrival, with as many steps as DyLU gives each.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers.recursion import DelayedNesterov, assert_equal
from helpers.tiny import START, Momentum, gradient, machines, run, sgd
from torch import Tensor

from sgp_runner.algorithms.async_diloco import AsyncDiLoCo
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.core.optim import (
    SGD,
    Adam,
    AdamW,
    InverseSqrt,
    Schedule,
    WarmupCosine,
)
from sgp_runner.core.worker import Worker

TOY = (0.58, 0.75, 1.51, 3.33)  # seconds of a step in the paper's toy
SPEEDS = tuple(1 / seconds for seconds in TOY)


@pytest.mark.parametrize(
    "optim",
    [
        sgd(momentum=0.8, nesterov=True, weight_decay=0.01, schedule=WarmupCosine()),
        AdamW(WarmupCosine()),
        Adam(InverseSqrt(2)),
    ],
    ids=lambda optim: optim.name,
)
@pytest.mark.parametrize("grace", [0.0, 0.3])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_async_diloco_with_equal_speeds_is_diloco(n: int, grace: float, optim: SGD) -> None:
    """Also with a last period of fewer steps, and a learning rate that changes."""
    result = run(AsyncDiLoCo(period=4, grace=grace), n, 10, optim)
    assert_equal(result.x, np.tile(run(DiLoCo(period=4), n, 10, optim).x[0], (n + 1, 1)))
    assert [worker.steps_taken for worker in result.workers] == [*([10] * n), 10 * n]
    assert result.simulation.clock.now == pytest.approx(10 + 3 * grace)


def server_of(algo: AsyncDiLoCo, nodes: int) -> DelayedNesterov:
    return DelayedNesterov(algo.lr, algo.momentum, algo.delay or nodes, algo.c)


def simulated_by_hand(algo: AsyncDiLoCo, seconds: tuple[float, ...], total: int) -> np.ndarray:
    """The server's parameters after ``total`` gradients of workers that take ``seconds`` each."""
    n, optim = len(seconds), sgd(momentum=0.9, nesterov=True)
    server, locals_ = server_of(algo, n), [Momentum(optim) for _ in range(n)]
    x, start = [START.copy() for _ in range(n)], [START.copy() for _ in range(n)]
    inner, taken, begun = [0] * n, [0] * n, n
    ends = [(seconds[i], i) for i in range(n)]
    heapq.heapify(ends)
    batch: list[int] = []
    closes = np.inf
    while ends or batch:
        if not ends or closes <= ends[0][0]:
            now, answered, batch = closes, batch, []
            for i in answered:
                server.arrive(start[i] - x[i])
            for i in answered:
                x[i], start[i], inner[i] = server.x, server.x, 0
                if begun < total:
                    heapq.heappush(ends, (now + seconds[i], i))
                    begun += 1
            closes = np.inf
            continue
        now, i = heapq.heappop(ends)
        x[i] = x[i] - locals_[i].step(gradient(i, taken[i], x[i]), x[i])
        inner[i], taken[i] = inner[i] + 1, taken[i] + 1
        if inner[i] < algo.inner_steps(i) and begun < total:
            heapq.heappush(ends, (now + seconds[i], i))
            begun += 1
        else:
            closes = min(closes, now + algo.grace)
            batch.append(i)
    return server.x


ALGORITHMS = [
    AsyncDiLoCo(period=3),
    AsyncDiLoCo(period=4, grace=0.69, c=0.2),
    AsyncDiLoCo(period=2, delay=3, momentum=0.5, c=1 / 3, grace=2.0),
    AsyncDiLoCo(period=6, speeds=SPEEDS, delay=1),
    AsyncDiLoCo(period=6, speeds=SPEEDS, grace=0.5),
]


@pytest.mark.parametrize("seconds", [TOY, TOY[::-1], (1.51, 3.33, 0.58, 0.75)], ids=str)
@pytest.mark.parametrize("algo", ALGORITHMS, ids=str)
def test_async_diloco_with_unequal_speeds_by_hand(
    algo: AsyncDiLoCo, seconds: tuple[float, ...]
) -> None:
    """The outer gradients of a batch are applied in the order of arrival, not that of ranks."""
    cluster = machines(factors=dict(enumerate(seconds)))
    result = run(algo, 4, 12, sgd(momentum=0.9, nesterov=True), cluster)
    assert_equal(result.x[4], simulated_by_hand(algo, seconds, 48))
    taken = [worker.steps_taken for worker in result.workers]
    assert taken[4] == sum(taken[:4]) == 48


@dataclass(frozen=True)
class Noting(AsyncDiLoCo):
    """Notes the outer gradients in the order in which they are applied."""

    noted: list[np.ndarray] = field(default_factory=list)

    def outer_step(self, server: Worker, g: Tensor) -> None:
        self.noted.append(g.numpy().copy())
        AsyncDiLoCo.outer_step(self, server, g)


@pytest.mark.parametrize("c", [0.0, 0.1, 0.25])
def test_async_diloco_is_delayed_nesterov_under_random_delays(c: float) -> None:
    algo = Noting(period=3, c=c, grace=0.2)
    cluster = machines(LogNormalTime(0.6), latency=0.3, factors={1: 2.0})
    result = run(algo, 4, 20, sgd(momentum=0.9), cluster)
    oracle = server_of(algo, 4)
    for g in algo.noted:
        oracle.arrive(g)
    assert_equal(result.x[4], oracle.x)
    assert result.workers[4].counter("arrivals") == len(algo.noted) > 80 / 3


@pytest.mark.parametrize(
    ("algo", "steps"),
    [
        (AsyncDiLoCo(), [50, 50, 50]),
        (AsyncDiLoCo(speeds=SPEEDS), [50, 38, 19, 8]),
        (AsyncDiLoCo(period=10, speeds=(0.1, 0.3, 1.0, 0.001)), [1, 3, 10, 1]),
    ],
)
def test_the_steps_of_dylu(algo: AsyncDiLoCo, steps: list[int]) -> None:
    algo.check(len(steps), sgd())
    assert [algo.inner_steps(rank) for rank in range(len(steps))] == steps


@pytest.mark.parametrize(
    ("grace", "restarts"),
    [
        (0.0, [(1.0, 0), (1.25, 1), (1.75, 2), (2.0, 0)]),
        (0.5, [(1.5, 0), (1.5, 1), (2.25, 2), (3.0, 0)]),
        (0.8, [(1.8, 0), (1.8, 1), (1.8, 2), (3.6, 0)]),
    ],
)
def test_the_grace_period_batches_workers_that_finish_within_it(
    grace: float, restarts: list[tuple[float, int]]
) -> None:
    """Workers take 1, 1.25 and 1.75 s; with 0.5 s the first two restart together, at 1.5 s."""
    cluster = machines(factors={1: 1.25, 2: 1.75})
    trace = run(AsyncDiLoCo(period=1, grace=grace), 3, 2, cluster=cluster).trace
    assert [(time, rank) for time, rank, _ in trace if rank < 3][:4] == restarts


def test_the_learning_rate_follows_the_own_shard() -> None:
    """A worker of twice the speed is at the end of its shard when a third of the run is left."""
    rates: dict[int, list[float]] = {0: [], 1: []}
    schedule: Schedule = WarmupCosine(warmup=0.0, final=0.5)
    run(
        AsyncDiLoCo(period=1),
        2,
        12,
        sgd(lr=1.0, schedule=schedule),
        machines(factors={1: 2.0}),
        each_step=lambda result, worker: rates.get(worker.rank, []).append(worker.lr),
    )
    assert [len(history) for history in rates.values()] == [16, 8]
    assert rates[0][:8] == rates[1]
    assert rates[0][11:] == [0.5] * 5
    assert rates[1][-1] > 0.6
