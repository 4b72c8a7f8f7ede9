"""SGP against its matrix recursion and against what it must equal."""

from __future__ import annotations

from itertools import product

import pytest
from helpers.recursion import (
    DIRECTED,
    OPTIM,
    SHIFTS,
    SIZES,
    STEPS,
    SYMMETRIC,
    Oracle,
    assert_equal,
    same,
)
from helpers.tiny import D, run

from sgp_runner.algorithms.ar_sgd import ARSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.core.optim import (
    SGD,
    Adam,
    Constant,
)
from sgp_runner.topology.graphs import (
    Complete,
    DirectedExponential,
    Ring,
    Topology,
)


def test_sgp_on_two_nodes_is_d_psgd() -> None:
    assert same(SGP(SHIFTS), DPSGD(Ring(), order="adapt_then_combine"), 2)


@pytest.mark.parametrize("optim", [OPTIM, Adam(Constant(), lr=0.1)])
@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_sgp_on_a_complete_graph_averages_parameters(optim: SGD | Adam, nodes: int) -> None:
    assert same(SGP(Complete()), ARSGD(average="parameters"), nodes, optim)


def test_peers_follow_their_schedule_by_epoch() -> None:
    result = run(SGP(DirectedExponential(peers={0: 2, 2: 1})), 4, STEPS, OPTIM)
    message = (D + 1) * 8
    assert [comm.num_bytes_sent for comm in result.simulation.comms] == [
        (8 * 2 + 4 * 1) * message
    ] * 4


@pytest.mark.parametrize(
    ("topology", "n"),
    [
        *product([*DIRECTED, *SYMMETRIC], SIZES),
        *product([DirectedExponential(peers=2)], [3, 4, 6, 8]),
    ],
    ids=str,
)
def test_sgp(topology: Topology, n: int) -> None:
    oracle = Oracle(n)
    for k in range(STEPS):
        p = oracle.p(topology, k)
        oracle.x, oracle.w = p @ (oracle.x - oracle.d(k)), p @ oracle.w
    result = run(SGP(topology), n, STEPS, OPTIM)
    assert_equal(result.x, oracle.x / oracle.w[:, None])
    assert_equal(result.w, oracle.w)
