"""DiLoCo, and its overlapped outer steps, against recursions and against what they must equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.experiments import make_experiment
from helpers.recursion import ADAM, LATE, OPTIM, PLAIN, STEPS, Oracle, assert_equal, same
from helpers.tiny import START, D, Result, run, sgd

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.assembly.build import build_problem
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.core.optim import (
    AdamW,
    Constant,
)
from sgp_runner.core.outer import outer_step
from sgp_runner.core.worker import Worker
from sgp_runner.data.sampler import ShardSampler


def by_hand(
    steps: int,
    period: int,
    nesterov: bool = True,
    restart: int = 99,
    weights: tuple[float, ...] | None = None,
) -> np.ndarray:
    """Models of three workers; the outer momentum is zero again after ``restart`` outer steps."""
    oracle, theta, v = Oracle(3), START.copy(), np.zeros(D)
    for k in oracle.exchanges(steps, period):
        delta = np.average(theta - oracle.x, axis=0, weights=weights)
        v = (0.8 if k % restart else 0) * v + delta
        theta = theta - 0.6 * (delta + 0.8 * v if nesterov else v)
        oracle.x = np.tile(theta, (3, 1))
    return oracle.x


@pytest.mark.parametrize("cluster", LATE)
@pytest.mark.parametrize("nesterov", [True, False])
def test_diloco(cluster: Cluster, nesterov: bool) -> None:
    algo = DiLoCo(period=4, lr=0.6, momentum=0.8, nesterov=nesterov)
    assert_equal(run(algo, 3, STEPS, OPTIM, cluster).x, by_hand(STEPS, 4, nesterov))


def test_the_outer_momentum_is_zero_again_after_two_outer_steps() -> None:
    algo = DiLoCo(period=3, lr=0.6, momentum=0.8, restart=2)
    assert_equal(run(algo, 3, STEPS, OPTIM).x, by_hand(STEPS, 3, restart=2))
    assert same(DiLoCo(3, momentum=0.0, restart=2), DiLoCo(3, momentum=0.0), 3, OPTIM)


def test_diloco_weighted_by_the_examples_of_each_worker() -> None:
    weights = (0.5, 0.75, 1.75)

    def weigh(result: Result, worker: Worker) -> None:
        worker.examples = weights[worker.rank]

    algo = DiLoCo(period=4, lr=0.6, momentum=0.8, weights="examples")
    assert_equal(run(algo, 3, 8, OPTIM, each_step=weigh).x, by_hand(8, 4, weights=weights))


@pytest.mark.parametrize(("partition", "equal"), [("iid", True), ("dirichlet", False)])
def test_the_examples_of_a_diloco_worker_are_those_of_its_shard(
    partition: str, equal: bool, tmp_path: Path
) -> None:
    settings = ("algo=diloco", "algo.weights=examples", "model=mlp", "nodes=3")
    made = make_experiment(tmp_path / partition, *settings, f"data.partition={partition}")
    problem = build_problem(made.run)
    examples = [problem.examples(rank) for rank in range(3)]
    assert sum(examples) == pytest.approx(3) and (examples == [1, 1, 1]) == equal
    if isinstance(problem.sampler, ShardSampler):
        sizes = [len(shard) for shard in problem.sampler.shards]
        assert examples == [size * 3 / 1437 for size in sizes]


@pytest.mark.parametrize("optim", [OPTIM, ADAM])
def test_diloco_with_plain_outer_steps_is_local_sgd(optim: Any) -> None:
    assert same(DiLoCo(4, lr=1.0, momentum=0.0), LocalSGD(4), 3, optim, steps=14)


def test_diloco_at_every_step_is_ar_sgd() -> None:
    assert same(DiLoCo(1, lr=1.0, momentum=0.0), ARSGD(), 3, PLAIN)
    nesterov = sgd(lr=0.2 * 0.7, momentum=0.9, nesterov=True)
    outer = run(DiLoCo(1, lr=0.7, momentum=0.9), 3, STEPS, PLAIN).x
    assert_equal(outer, run(ARSGD(), 3, STEPS, nesterov).x)


def test_the_outer_parameters_are_evaluated() -> None:
    seen: list[bool] = []

    def look(result: Result, worker: Worker) -> None:
        if worker.steps_taken % 4:
            seen.append(torch.equal(worker.model, worker.params))

    run(DiLoCo(4), 2, 8, OPTIM, each_step=look)
    assert not any(seen) and len(seen) == 12


def test_local_steps_of_adamw_clip_each_gradient() -> None:
    optim = AdamW(Constant(), lr=0.05, clip=0.1)
    loose = replace(optim, clip=None)
    a, b = (run(DiLoCo(3), 2, 6, optimizer).x for optimizer in (optim, loose))  # type: ignore[arg-type]
    assert not np.allclose(a, b)


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
