"""DiLoCo against the recursion of its paper and against what it must equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
from sgp_runner.core.worker import Worker
from sgp_runner.data.sampler import ShardSampler


@pytest.mark.parametrize("cluster", LATE)
@pytest.mark.parametrize("nesterov", [True, False])
def test_diloco(cluster: Cluster, nesterov: bool) -> None:
    oracle, theta, v = Oracle(3), START.copy(), np.zeros(D)
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 4 == 0:
            delta = np.mean(theta - oracle.x, axis=0)
            v = 0.8 * v + delta
            theta = theta - 0.6 * (delta + 0.8 * v if nesterov else v)
            oracle.x = np.tile(theta, (3, 1))
    algo = DiLoCo(period=4, lr=0.6, momentum=0.8, nesterov=nesterov)
    assert_equal(run(algo, 3, STEPS, OPTIM, cluster).x, oracle.x)


def test_the_outer_momentum_is_zero_again_after_two_outer_steps() -> None:
    oracle, theta, v = Oracle(3), START.copy(), np.zeros(D)
    for k in range(STEPS):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 3 == 0:
            delta = np.mean(theta - oracle.x, axis=0)
            v = (0 if k + 1 == 9 else 0.8) * v + delta
            theta = theta - 0.6 * (delta + 0.8 * v)
            oracle.x = np.tile(theta, (3, 1))
    algo = DiLoCo(period=3, lr=0.6, momentum=0.8, restart=2)
    assert_equal(run(algo, 3, STEPS, OPTIM).x, oracle.x)
    assert same(DiLoCo(3, momentum=0.0, restart=2), DiLoCo(3, momentum=0.0), 3, OPTIM)


def test_diloco_weighted_by_the_examples_of_each_worker() -> None:
    weights = (0.5, 0.75, 1.75)

    def weigh(result: Result, worker: Worker) -> None:
        worker.examples = weights[worker.rank]

    oracle, theta, v = Oracle(3), START.copy(), np.zeros(D)
    for k in range(8):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 4 == 0:
            delta = np.average(theta - oracle.x, axis=0, weights=weights)
            v = 0.8 * v + delta
            theta = theta - 0.6 * (delta + 0.8 * v)
            oracle.x = np.tile(theta, (3, 1))
    algo = DiLoCo(period=4, lr=0.6, momentum=0.8, weights="examples")
    assert_equal(run(algo, 3, 8, OPTIM, each_step=weigh).x, oracle.x)


def test_the_examples_of_a_diloco_worker_are_those_of_its_shard(tmp_path: Path) -> None:
    settings = ("algo=diloco", "algo.weights=examples", "model=mlp", "nodes=3")
    for partition, equal in (("iid", True), ("dirichlet", False)):
        made = make_experiment(tmp_path / partition, *settings, f"data.partition={partition}")
        problem = build_problem(made.run)
        examples = [problem.examples(rank) for rank in range(3)]
        assert sum(examples) == pytest.approx(3) and (examples == [1, 1, 1]) == equal
        if isinstance(problem.sampler, ShardSampler):
            sizes = [len(shard) for shard in problem.sampler.shards]
            assert examples == [size * 3 / 1437 for size in sizes]


def test_diloco_with_plain_outer_steps_is_local_sgd() -> None:
    for optim in (OPTIM, ADAM):
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
