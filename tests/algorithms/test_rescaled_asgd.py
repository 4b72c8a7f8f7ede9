"""Rescaled ASGD by hand, and its equal weights of all workers."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from helpers.recursion import OPTIM, PLAIN, assert_equal
from helpers.tiny import START, D, Momentum, gradient, machines, run

from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.algorithms.rescaled_asgd import RescaledASGD
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.core.worker import Worker

SPEEDS = [(0.58, 0.75, 1.51, 3.33), (1.0, 49.9713, 1.30171)]  # no two gradients end at once


@pytest.mark.parametrize("seconds", SPEEDS, ids=str)
def test_rescaled_asgd_by_hand(seconds: tuple[float, ...]) -> None:
    """Messages take no time."""
    n = len(seconds)
    result = run(RescaledASGD(), n, 12, OPTIM, machines(factors=dict(enumerate(seconds))))
    x, at, batch, left, momentum = START, [START] * n, [0] * n, 12 * n - n, Momentum(OPTIM)
    events = [(seconds[i], i) for i in range(n)]
    heapq.heapify(events)
    while events:
        now, i = heapq.heappop(events)
        batch[i] += 1
        # The times of a worker's gradients are equal here, and so is their mean.
        arrived = [seconds[j] for j in range(n) if batch[j]]
        factor = seconds[i] * np.mean([1 / each for each in arrived])
        x = x - factor * momentum.step(gradient(i, batch[i] - 1, at[i]), x)
        at[i] = x
        if left:
            left -= 1
            heapq.heappush(events, (now + seconds[i], i))
    np.testing.assert_allclose(result.x[n], x, rtol=1e-9, atol=1e-9)


def test_rescaled_asgd_of_equal_workers_is_asgd() -> None:
    for optim in (OPTIM, PLAIN):
        plain = run(GapAware("none"), 4, 12, optim).x[4]
        assert_equal(run(RescaledASGD(), 4, 12, optim).x[4], plain)


def test_factors_of_all_workers_of_rescaled_asgd_have_equal_sums_and_a_mean_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From 12 to 24 s, in which workers of 1, 2, 3 and 4 s send 12, 6, 4 and 3 gradients."""
    factors: list[tuple[float, int, float]] = []
    plain = RescaledASGD.factor

    def noted(algo: RescaledASGD, server: Worker, i: int) -> float:
        factors.append((server.now, i, plain(algo, server, i)))
        return factors[-1][2]

    monkeypatch.setattr(RescaledASGD, "factor", noted)
    run(RescaledASGD(), 4, 15, PLAIN, machines(factors={1: 2.0, 2: 3.0, 3: 4.0}))
    late = [(i, factor) for now, i, factor in factors if 12 < now <= 24]
    sums = [sum(factor for j, factor in late if j == i) for i in range(4)]
    assert [sum(j == i for j, _ in late) for i in range(4)] == [12, 6, 4, 3]
    assert_equal(np.array(sums), np.full(4, 25 / 4))


def test_a_slow_worker_counts_as_much_as_a_fast_one_in_rescaled_asgd() -> None:
    """The optimum of all data is approached, where ASGD approaches that of fast workers."""
    cluster = machines(LogNormalTime(0.2), factors={0: 0.2, 1: 0.2, 2: 3.0, 3: 3.0})
    curvature = [
        [gradient(i, k, np.ones(D)) - gradient(i, k, np.zeros(D)) for k in range(12)]
        for i in range(4)
    ]
    offset = [[-gradient(i, k, np.zeros(D)) for k in range(12)] for i in range(4)]
    best = np.sum(offset, axis=(0, 1)) / np.sum(curvature, axis=(0, 1))
    ends = [
        run(algo, 4, 400, PLAIN.__class__(PLAIN.schedule, lr=0.01, momentum=0.0), cluster).x[4]
        for algo in (RescaledASGD(), GapAware("none"))
    ]
    rescaled, plain = (np.abs(end - best).max() for end in ends)
    assert rescaled < 0.15 < plain


def test_bytes_of_rescaled_asgd() -> None:
    sent = [worker.comm.num_bytes_sent for worker in run(RescaledASGD(), 3, 10, OPTIM).workers]
    assert sent == [8 * D * 10] * 3 + [8 * D * 30]
