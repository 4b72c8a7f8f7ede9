"""Results of the nodes of a real run, and the baseline throughput of a node."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sgp_runner.config.membership import Membership
from sgp_runner.core.flops import flops_per_sample
from sgp_runner.core.parts import norm
from sgp_runner.core.problem import Problem
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.distributed.world import World, check_alike, checksum
from sgp_runner.recording.epoch_average import spread
from sgp_runner.recording.observer import Observer, cost_of, results, total_cost
from sgp_runner.recording.throughput import Throughput
from sgp_runner.utils.devices import peak_flops
from sgp_runner.utils.sums import sum_in_order


def throughput_of(problem: Problem, layout: RankLayout) -> Throughput | None:
    """Return the throughput of this process's node, measured before its first gradient.

    Returns None on processes that record nothing, and for models without gradients.
    """
    if layout.device or not problem.trains:
        return None
    compute = problem.compute
    peak = peak_flops(compute.device, compute.autocast in ("bf16", "fp16"))
    return Throughput(
        flops=flops_per_sample(problem, layout.node_rank),
        peak=None if peak is None else peak * layout.devices,
    )


def results_of(
    observer: Observer, worker: Worker, ranks: Sequence[Mapping[str, Any]], mean: Tensor
) -> dict[str, object]:
    """Return the results for the summary; record the mean model unless there is a server.

    ranks: results of all nodes, then of the servers
    mean: [D], the mean of the nodes' models
    """
    run = observer.membership.run
    nodes = ranks[: run.nodes]
    metrics = [node["metrics"] for node in nodes]
    if run.algo.servers:
        average = ranks[-1]["metrics"]
    else:
        squares = sum_in_order(node["square"] for node in nodes)
        observer.record_average(
            worker,
            run.epochs,
            mean,
            spread(squares, metrics, [node["weight"] for node in nodes]),
        )
        average = observer.average
    costs = total_cost([node["cost"] for node in nodes], time.monotonic() - observer.started)
    quality = results(observer.problem.dataset.task.metric, metrics, average)
    return {**costs, **quality, **observer.translations}


def evaluated(
    observer: Observer, worker: Worker, world: World, membership: Membership
) -> dict[str, object] | None:
    """Evaluate every rank's model and their average (or the server's); None except on rank 0."""
    observer.recorder.check()  # while the other ranks can still learn of an error
    run = membership.run
    observer.record_training(worker)
    facts: dict[str, Any] = {
        "cost": cost_of(worker, observer.throughput),
        "weight": float(worker.push_sum[-1]),
        "checksum": checksum(worker.params),
        "metrics": observer.evaluate(worker, run.epochs),
    }
    mean = worker.own_model.clone()
    if not worker.is_server:
        world.mean(mean)
        facts["square"] = float(norm(worker.own_model - mean, worker.shapes)) ** 2
    mean = worker.gathered(mean)
    processes = world.gather(facts)
    if world.cut is None:
        check_alike(processes, world.layout)
    if membership.original_ranks[world.layout.node_rank] != 0:
        return None
    ranks = [end for end in processes if end is not None and "cost" in end]
    return results_of(observer, worker, ranks, mean)
