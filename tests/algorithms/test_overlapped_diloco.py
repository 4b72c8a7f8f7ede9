"""DiLoCo with overlapped outer steps against its recursion and against what it must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.recursion import ADAM, LATE, OPTIM, STEPS, Oracle, assert_equal, same
from helpers.tiny import START, D, Result, run

from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.outer import outer_step
from sgp_runner.core.worker import Worker


@pytest.mark.parametrize("cluster", LATE)
@pytest.mark.parametrize("overlap", ["delayed", "eager"])
def test_overlapped_diloco(cluster: Cluster, overlap: Any) -> None:
    """After 14 steps, so that the last period is shorter."""
    oracle, theta, v = Oracle(3), np.tile(START, (3, 1)), np.zeros((3, D))
    mean, last = np.zeros(D), np.zeros((3, D))
    for k in range(14):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 4 == 0 or k == 13:
            change = theta - oracle.x
            delta = mean + ((change - last) / 3 if overlap == "eager" else np.zeros((3, D)))
            assert overlap == "delayed" or np.allclose(
                delta.mean(axis=0), 2 / 3 * last.mean(axis=0) + change.mean(axis=0) / 3
            )
            v = 0.8 * v + delta
            theta = theta - 0.6 * (delta + 0.8 * v)
            oracle.x, last, mean = theta.copy(), change, change.mean(axis=0)
    v = 0.8 * v + mean
    delayed, eager = theta - 0.6 * (mean + 0.8 * v), theta - 0.6 * (mean - last / 3)
    end = delayed if overlap == "delayed" else np.tile(eager.mean(axis=0), (3, 1))
    algo = DiLoCo(4, lr=0.6, momentum=0.8, overlap=overlap)
    assert_equal(run(algo, 3, 14, OPTIM, cluster).x, end)


@pytest.mark.parametrize(
    ("late", "limit"),
    [(0.0, 1.357), (1.0, 0.253), (3 / 4, 0.415), (7 / 8, 0.320)],
    ids=["none", "delayed", "eager with 4 nodes", "eager with 8 nodes"],
)
def test_largest_stable_outer_rate_if_a_period_ends_at_the_minimum(
    late: float, limit: float
) -> None:
    """The outer gradient mixes this period's with a share ``late`` of the last period's."""

    def grows(lr: float) -> bool:
        theta, v, last = torch.ones(1), torch.zeros(1), torch.zeros(1)
        sizes = []
        for _ in range(1000):
            delta = torch.lerp(theta, last, late)
            last = theta.clone()
            outer_step(theta, v, delta, lr, 0.9, nesterov=True)
            sizes.append(theta.abs().item())
        return max(sizes[-100:]) > max(sizes[:100])

    assert not grows(limit - 0.002) and grows(limit + 0.002)


def test_eager_diloco_on_one_node_is_diloco() -> None:
    assert same(DiLoCo(4, overlap="eager"), DiLoCo(4), 1, ADAM, steps=14)
    assert not same(DiLoCo(4, overlap="eager"), DiLoCo(4), 3, ADAM, steps=14)


def test_outer_parameters_do_not_drift_apart_in_eager_diloco_without_momentum() -> None:
    """theta_i + lr own_i / n is the same on all workers after every period."""
    rounds: dict[int, list[np.ndarray]] = {}

    def look(result: Result, worker: Worker) -> None:
        if worker.steps_taken % 3 == 0 and worker.steps_taken < STEPS:
            common = worker.state["outer"] + 0.6 * worker.state["last_change"] / 3
            rounds.setdefault(worker.steps_taken, []).append(common.numpy().copy())

    result = run(DiLoCo(3, lr=0.6, momentum=0.0, overlap="eager"), 3, STEPS, OPTIM, each_step=look)
    assert sorted(rounds) == [3, 6, 9]
    for of_workers in rounds.values():
        assert_equal(np.stack(of_workers), np.tile(of_workers[0], (3, 1)))
    assert_equal(result.x, np.tile(result.x[0], (3, 1)))
