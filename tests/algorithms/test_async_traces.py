"""Asynchronous algorithms: who finishes which step when, worked out by hand, and how the shared
budget is spent.
"""

from __future__ import annotations

import numpy as np
from helpers.tiny import machines, run, sgd

from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.gap_aware import GapAware
from sgp_runner.cluster.compute_variation import LogNormalTime
from sgp_runner.cluster.faults import Faults
from sgp_runner.topology.graphs import BipartiteExponential


def test_golden_trace_of_ad_psgd() -> None:
    """Compute times 1, 1.5, 2 and 1 s, messages in no time: (time, rank, number of the gradient),
    20 gradients in all.
    """
    result = run(ADPSGD(BipartiteExponential()), 4, 5, cluster=machines(factors={1: 1.5, 2: 2.0}))
    assert result.trace == [
        (1.0, 0, 0),
        (1.0, 3, 3),
        (1.5, 1, 1),
        (2.0, 2, 2),
        (2.0, 0, 4),
        (2.0, 3, 5),
        (3.0, 1, 6),
        (3.0, 0, 8),
        (3.0, 3, 9),
        (4.0, 2, 7),
        (4.0, 0, 11),
        (4.0, 3, 12),
        (4.5, 1, 10),
        (5.0, 0, 14),
        (5.0, 3, 15),
        (6.0, 2, 13),
        (6.0, 1, 16),
        (6.0, 0, 17),
        (6.0, 3, 18),
        (8.0, 2, 19),
    ]


def test_an_exchange_that_outlasts_the_gradient_holds_the_active_side_only() -> None:
    """Rank 1 is active: 0.8 s there, 0.8 s back; rank 0 is passive and never waits. Steps of 1 s.

    With one average for each gradient of either, rank 1 starts two, one after the other; with half
    of that, one.
    """
    result = run(ADPSGD(BipartiteExponential()), 2, 4, cluster=machines(latency=0.8))
    assert result.trace == [
        (1.0, 0, 0),
        (2.0, 0, 2),
        (3.0, 0, 3),
        (3.2, 1, 1),
        (4.0, 0, 4),
        (5.0, 0, 6),
        (6.0, 0, 7),
        (6.4, 1, 5),
    ]
    result = run(
        ADPSGD(BipartiteExponential(), averages_per_gradient=0.5),
        2,
        4,
        cluster=machines(latency=0.8),
    )
    assert result.trace == [
        (1.0, 0, 0),
        (1.6, 1, 1),
        (2.0, 0, 2),
        (3.0, 0, 4),
        (3.2, 1, 3),
        (4.0, 0, 5),
        (4.8, 1, 6),
        (5.0, 0, 7),
    ]


def test_golden_trace_of_gap_aware() -> None:
    """Compute times 1 and 2 s, messages 0.25 s; rank 2 is the server, whose steps are the gradients
    in their order of arrival.
    """
    result = run(GapAware(), 2, 5, cluster=machines(latency=0.25, factors={1: 2.0}))
    assert result.trace == [
        (1.25, 2, 0),
        (1.5, 0, 0),
        (2.25, 2, 1),
        (2.5, 1, 1),
        (2.75, 2, 2),
        (3.0, 0, 2),
        (4.25, 2, 3),
        (4.5, 0, 4),
        (4.75, 2, 4),
        (5.0, 1, 3),
        (5.75, 2, 5),
        (6.0, 0, 5),
        (7.25, 2, 6),
        (7.25, 2, 7),
        (7.5, 1, 6),
        (7.5, 0, 7),
        (8.75, 2, 8),
        (9.0, 0, 9),
        (9.75, 2, 9),
        (10.0, 1, 8),
    ]


def test_the_budget_is_shared_and_spent_exactly() -> None:
    for algo in (ADPSGD(BipartiteExponential()), GapAware("none")):
        result = run(
            algo, 6, 20, sgd(), machines(LogNormalTime(0.4), latency=0.3), Faults({2: 5.0}, {})
        )
        taken = [worker.steps_taken for worker in result.workers[:6]]
        assert sum(taken) == 6 * 20
        assert sorted(step for _, rank, step in result.trace if rank < 6) == list(range(120))
        assert (
            taken[2] < 10 < min(taken[:2] + taken[3:])
        )  # the slow one does less, the others its share


def test_a_slow_node_hardly_delays_asynchronous_algorithms() -> None:
    for algo in (ADPSGD(BipartiteExponential()), GapAware()):
        normal, slow = (
            run(algo, 8, 40, faults=Faults(nodes, {})).simulation.clock.now
            for nodes in ({}, {0: 4.0})
        )
        assert normal == 40.0
        assert (
            slow < 40 * 8 / 7.25 + 4.0
        )  # seven nodes and a quarter, and at most one slow gradient at the end


def test_the_learning_rate_follows_the_global_count() -> None:
    seen: dict[int, float] = {}
    run(
        ADPSGD(BipartiteExponential()),
        2,
        8,
        each_step=lambda result, worker: seen.setdefault(worker.step, worker.epoch),
    )
    assert np.allclose(
        [seen[k] for k in range(16)], [k / 8 for k in range(16)]
    )  # 4 steps of 2 nodes per epoch
