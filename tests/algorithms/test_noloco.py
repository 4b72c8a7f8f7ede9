"""NoLoCo against the recursion of its paper and against what it must equal."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recursion import LATE, OPTIM, STEPS, Oracle, assert_equal, same
from helpers.tiny import D, run

from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.noloco import NoLoCo
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.topology.graphs import (
    Complete,
    RandomMatching,
    Topology,
)


@pytest.mark.parametrize("cluster", LATE)
def test_noloco(cluster: Cluster) -> None:
    oracle, graph = Oracle(4), RandomMatching(seed=5)
    phi, m = oracle.x.copy(), np.zeros((4, D))
    for k in oracle.exchanges(STEPS, 3):
        w = oracle.p(graph, k)
        m = 0.5 * m + 0.7 * w @ (oracle.x - phi) - 0.6 * (phi - w @ phi)
        phi = phi + m
        oracle.x = phi.copy()
    algo = NoLoCo(graph, period=3, lr=0.7, momentum=0.5, gamma=0.6)
    assert_equal(run(algo, 4, STEPS, OPTIM, cluster).x, oracle.x)


@pytest.mark.parametrize(("nodes", "graph"), [(2, RandomMatching()), (3, Complete())])
def test_noloco_on_a_complete_graph_is_diloco_with_a_heavy_ball(
    nodes: int, graph: Topology
) -> None:
    heavy = DiLoCo(4, lr=0.7, momentum=0.5, nesterov=False)
    assert same(NoLoCo(graph, period=4), heavy, nodes, steps=14)


def test_the_spread_of_outer_parameters_falls_by_three_tenths_per_exchange() -> None:
    """Asymptotically, for a momentum of 0.5 and gamma 0.7, with gradients of zero."""
    phi, m, variances = np.random.default_rng(0).normal(size=(4096, 2)), np.zeros((4096, 2)), []
    for exchange in range(40):
        w = RandomMatching()
        partners = [w.out_peers(rank, 4096, exchange)[0] for rank in range(4096)]
        mean = (phi + phi[partners]) / 2
        m = 0.5 * m - 0.7 * (phi - mean)
        phi = phi + m
        variances.append(phi.var(axis=0).sum())
    assert (variances[-1] / variances[9]) ** (1 / 30) == pytest.approx(0.7, abs=0.01)
