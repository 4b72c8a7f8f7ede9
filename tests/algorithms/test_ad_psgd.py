"""AD-PSGD: traces worked out by hand, the sum it conserves, how often it averages."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.conservation import ROUGH, tallied
from helpers.recursion import OPTIM
from helpers.tiny import START, machines, run

from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.topology.graphs import (
    BipartiteExponential,
)


@pytest.mark.parametrize(("name", "cluster", "faults"), ROUGH, ids=[name for name, *_ in ROUGH])
def test_pairwise_averages_conserve_the_sum(name: str, cluster: Cluster, faults: Faults) -> None:
    optim = tallied()
    result = run(
        ADPSGD(BipartiteExponential(), averages_per_gradient=2), 6, 10, optim, cluster, faults
    )
    np.testing.assert_allclose(result.x.sum(axis=0), 6 * START - optim.total.numpy(), atol=1e-9)


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("nodes", [2, 5, 6])
def test_ad_psgd_averages_so_often_for_each_gradient_of_any_worker(nodes: int, rate: float) -> None:
    result = run(
        ADPSGD(BipartiteExponential(), averages_per_gradient=rate),
        nodes,
        30,
        OPTIM,
        machines(latency=0.01),
    )
    averages = sum(worker.counter("averages") for worker in result.workers)
    assert averages == pytest.approx(rate * 30 * nodes, rel=0.02)


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
