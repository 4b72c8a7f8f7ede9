"""GASLoC against its recursion and against what it must equal."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from helpers.recursion import ADAM, LATE, OPTIM, STEPS, Oracle, assert_equal, same
from helpers.tiny import START, D, run, sgd, tiny_problem

from sgp_runner.algorithms.diloco import DiLoCo
from sgp_runner.algorithms.gasloc import GASLoC
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.topology.graphs import (
    Complete,
    DirectedExponential,
    RandomMatching,
    Ring,
    Topology,
    Torus,
    matrix,
)
from sgp_runner.utils.errors import ConfigError

Form = Literal["extrapolated", "printed"]
FORMS: list[Form] = ["extrapolated", "printed"]


@pytest.mark.parametrize("cluster", LATE)
@pytest.mark.parametrize("graph", [RandomMatching(seed=5), Ring()], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_gasloc(form: Form, graph: Topology, cluster: Cluster) -> None:
    """After 14 steps, so that the last period is shorter."""
    oracle, theta, before = Oracle(4), np.tile(START, (4, 1)), np.tile(START, (4, 1))
    for k in range(14):
        oracle.x = oracle.x - oracle.d(k)
        if (k + 1) % 4 == 0 or k == 13:
            x = theta + 0.6 * (oracle.x - theta)
            w, ahead, before = oracle.p(graph, k // 4), 0.5 * (x - before), x
            theta = w @ (x + ahead) if form == "extrapolated" else w @ x + ahead
            oracle.x = theta.copy()
    assert_equal(run(GASLoC(graph, 4, 0.6, 0.5, form), 4, 14, OPTIM, cluster).x, oracle.x)


@pytest.mark.parametrize("form", FORMS)
def test_gasloc_on_one_node_is_diloco(form: Form) -> None:
    for optim in (OPTIM, ADAM):
        assert same(GASLoC(Ring(), 4, form=form), DiLoCo(4), 1, optim, steps=14)


def test_gasloc_on_a_complete_graph_is_diloco_if_extrapolated() -> None:
    for nodes, graph in ((2, RandomMatching()), (3, Complete())):
        assert same(GASLoC(graph, 4), DiLoCo(4), nodes, steps=14)
    assert not same(GASLoC(Complete(), 4, form="printed"), DiLoCo(4), 3, steps=14)
    without = GASLoC(Complete(), 4, momentum=0.0, form="printed")
    assert same(without, DiLoCo(4, momentum=0.0), 3, steps=14)


def test_gasloc_of_plain_averages_is_local_sgd() -> None:
    assert same(GASLoC(Complete(), 4, lr=1.0, momentum=0.0), LocalSGD(4), 3, steps=14)


@pytest.mark.parametrize("form", FORMS)
def test_the_mean_of_gasloc_moves_by_nesterovs_momentum(form: Form) -> None:
    """If gradients do not depend on the parameters, the mean is DiLoCo's on any graph."""
    scales = np.full((64, STEPS, D), 1e-9)
    problem = tiny_problem(scales, np.random.default_rng(1).normal(size=scales.shape) * 1e18)
    graphs: list[Topology] = [Ring(), RandomMatching(), Torus()]
    want = run(DiLoCo(3), 4, STEPS, sgd(lr=0.1), problem=problem).x.mean(axis=0)
    for graph in graphs:
        mean = run(GASLoC(graph, 3, form=form), 4, STEPS, sgd(lr=0.1), problem=problem).x
        assert_equal(mean.mean(axis=0), want)
        assert np.ptp(mean, axis=0).max() > 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.33, 0.34, 0.5, 0.9])
@pytest.mark.parametrize(("graph", "nodes"), [(Ring(), 8), (Torus(), 16), (Complete(), 5)], ids=str)
def test_gasloc_is_refused_where_its_workers_would_drift_apart(
    graph: Topology, nodes: int, momentum: float
) -> None:
    """Without gradients, by the roots of the recursion for each eigenvalue of W but the first."""
    eigenvalues = np.linalg.eigvalsh(np.array(matrix(graph, nodes, 0)))[:-1]
    sizes = [abs(np.roots([1, -e * (1 + momentum), e * momentum])).max() for e in eigenvalues]
    if max(sizes) < 1:
        GASLoC(graph, momentum=momentum).check(nodes, OPTIM)
    else:
        with pytest.raises(ConfigError, match="or the workers drift apart"):
            GASLoC(graph, momentum=momentum).check(nodes, OPTIM)
    for e in eigenvalues:
        assert abs(np.roots([1, -(e + momentum), momentum])).max() < 1  # printed


def test_bytes_of_gasloc() -> None:
    """In float64: parameters to each neighbour, three times."""
    for graph, peers in ((RandomMatching(), 1), (Ring(), 2)):
        result = run(GASLoC(graph, 4), 4, STEPS)
        assert [worker.comm.num_bytes_sent for worker in result.workers] == [3 * peers * 8 * D] * 4


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"topology": DirectedExponential()}, "algo.topology", "GASLoC needs a symmetric graph"),
        ({"period": 0}, "algo.period", "must be at least 1, not 0"),
        ({"lr": 0.0}, "algo.lr", "0.0 must be positive"),
        ({"momentum": 1.0}, "algo.momentum", "1.0 must be in"),
        (
            {"topology": Torus()},
            "algo.momentum",
            "0.9 must be less than 0.3333 on this graph, or the workers drift apart: use "
            "algo.form=printed, or another graph.",
        ),
    ],
)
def test_impossible_settings_of_gasloc_are_refused(
    settings: dict[str, Any], key: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        GASLoC(**{"topology": Ring(), **settings}).check(16, OPTIM)
    assert error.value.key == key
    GASLoC(Torus(), form="printed").check(16, OPTIM)
