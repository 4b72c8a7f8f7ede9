"""After the last round of a finite-time graph all nodes have the mean, in the matrices and in runs;
EquiDyn contracts as its expectation says.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.refusals import accepted, refusal
from helpers.tiny import START, gradient, run, sgd

from sgp_runner.algorithms.ad_psgd import ADPSGD
from sgp_runner.algorithms.d_psgd import DPSGD
from sgp_runner.algorithms.noloco import NoLoCo
from sgp_runner.algorithms.sgp import SGP
from sgp_runner.topology.equi_topo import EquiDyn, draw, pairs
from sgp_runner.topology.finite_time import Base, HyperHypercube
from sgp_runner.topology.graphs import Topology, matrix
from sgp_runner.topology.verify import verify
from sgp_runner.utils.errors import ConfigError

NUMBERS = range(1, 100)
KS = range(1, 5)


def dense(graph: Base | HyperHypercube, size: int, step: int) -> np.ndarray:
    """The mixing matrix of a symmetric graph."""
    mixing = np.eye(size)
    for i in range(size):
        for j, weight in zip(
            graph.out_peers(i, size, step), graph.weights(i, size, step), strict=True
        ):
            mixing[j, i] += weight
            mixing[i, i] -= weight
    return mixing


def check_exact(graph: Base | HyperHypercube, size: int) -> int:
    """Check all rounds of a graph; return how many it has."""
    ((_, rounds),) = graph.phases(size)
    product = np.eye(size)
    for step in range(rounds):
        mixing = dense(graph, size, step)
        assert (mixing >= 0).all()
        assert np.array_equal(mixing, mixing.T)
        assert ((mixing > 0).sum(0) <= graph.peers + 1).all()
        product = mixing @ product
    assert np.abs(product - 1 / size).max() < 1e-12
    return rounds


@pytest.mark.parametrize("simple", [True, False], ids=["simple", "base"])
@pytest.mark.parametrize("k", KS)
def test_base_graphs_are_exact_after_their_last_round(k: int, simple: bool) -> None:
    for size in NUMBERS:
        rounds = check_exact(Base(k, simple), size)
        bound = 2
        while (k + 1) ** (bound - 1) <= size**2:  # floor(2 log_(k+1) n + 2)
            bound += 1
        assert 1 <= rounds <= bound


@pytest.mark.parametrize("k", KS)
def test_hyper_hypercubes_are_exact_or_refused(k: int) -> None:
    graph = HyperHypercube(k)
    refused = [size for size in NUMBERS if not accepted(graph.check, size)]
    for size in {*NUMBERS} - {*refused}:
        check_exact(graph, size)
    primes = [p for p in range(2, 100) if all(p % q for q in range(2, p))]
    assert refused == [n for n in NUMBERS if any(n % p == 0 for p in primes if p > k + 1)]
    assert str(refusal(graph.check, 77)) == (
        f"algo.topology: 77 nodes have the prime factor 11, above algo.topology.peers + 1 = "
        f"{k + 1}: use algo.topology.peers=10, or algo.topology=base."
    )


def test_lengths() -> None:
    def lengths(k: int, simple: bool) -> dict[int, int]:
        return {size: Base(k, simple).phases(size)[0][1] for size in (3, 5, 6, 7, 12, 24, 25, 31)}

    assert lengths(1, True) == {3: 3, 5: 5, 6: 5, 7: 5, 12: 7, 24: 9, 25: 9, 31: 9}
    assert lengths(1, False) == {3: 3, 5: 5, 6: 4, 7: 5, 12: 5, 24: 6, 25: 9, 31: 9}
    for simple in (True, False):
        assert lengths(2, simple) == {3: 1} | {5: 3, 6: 2, 7: 4, 12: 3, 24: 4, 25: 6, 31: 7}


def test_the_rounds_of_three_and_of_five_nodes() -> None:
    graph = Base()
    assert [[graph.out_peers(rank, 3, step) for rank in range(3)] for step in range(3)] == [
        [(1,), (0,), ()],
        [(2,), (), (0,)],
        [(1,), (0,), ()],
    ]
    assert graph.weights(0, 3, 0) == (1 / 2,)
    assert graph.weights(0, 3, 1) == (2 / 3,)
    # The pair 1, 3 of the set that serves in round 2 is not needed, and averages.
    assert [graph.out_peers(rank, 5, 2) for rank in range(5)] == [(4,), (2,), (1,), (), (0,)]
    assert graph.weights(4, 5, 2) == (4 / 5,)


def test_algorithms_with_equal_weights_refuse_others() -> None:
    for algo in (NoLoCo(Base()), ADPSGD(Base())):
        with pytest.raises(ConfigError, match="equal weights, but in step 1 the graph gives node"):
            algo.check(3, sgd())
    NoLoCo(HyperHypercube()).check(4, sgd())
    verify(Base(), 97, "doubly stochastic", weighted=True)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ((), "in step 0 node 0 has 1 peers and 0 weights."),
        ((0.0,), "in step 0 the weights of node 0 must be positive and sum to at most 1."),
        ((1.1,), "in step 0 the weights of node 0 must be positive and sum to at most 1."),
    ],
)
def test_bad_weights_are_refused(weights: tuple[float, ...], sentence: str) -> None:
    @dataclass(frozen=True)
    class Weighted(Base):
        own: tuple[float, ...] = ()

        def weights(self, rank: int, size: int, step: int) -> tuple[float, ...]:
            return self.own

    assert refusal(verify, Weighted(own=weights), 2, weighted=True).sentence == sentence


ONE_STEP: Any = SimpleNamespace(factor=lambda epoch, horizon: float(epoch == 0))  # a schedule


@pytest.mark.parametrize("graph", [Base(), Base(2), HyperHypercube(4)], ids=str)
@pytest.mark.parametrize("nodes", [5, 15])
@pytest.mark.parametrize("name", ["sgp", "d_psgd"])
def test_nodes_that_stepped_once_agree_after_the_last_round(
    name: str, graph: Topology, nodes: int
) -> None:
    algo = SGP(graph) if name == "sgp" else DPSGD(graph, "adapt_then_combine")
    ((_, rounds),) = graph.phases(nodes)
    x = run(algo, nodes, rounds, sgd(schedule=ONE_STEP)).x
    mean = START - 0.1 * np.mean([gradient(i, 0, START) for i in range(nodes)], axis=0)
    np.testing.assert_allclose(x, np.tile(mean, (nodes, 1)), rtol=0, atol=1e-14)


def test_equi_dyn_draws_one_shift_for_all() -> None:
    graph = EquiDyn(directed=True)
    for step in range(20):
        shift, _ = draw(0, 7, step)
        assert [graph.out_peers(rank, 7, step) for rank in range(7)] == [
            ((rank + shift) % 7,) for rank in range(7)
        ]
    assert {draw(0, 7, step)[0] for step in range(64)} == {1, 2, 3, 4, 5, 6}
    assert {draw(0, 7, step)[1] for step in range(64)} == {0, 1, 2, 3, 4, 5, 6}
    assert pairs(5, 2, 3) == ((3,), (4,), (), (0,), (1,))
    assert graph.out_peers(0, 1, 0) == graph.in_peers(0, 1, 0) == ()


def contraction(matrices: list[np.ndarray]) -> np.ndarray:
    """The mean of W^T W over ``matrices``, without the direction of the mean."""
    size = len(matrices[0])
    return sum(w.T @ w for w in matrices) / len(matrices) - np.full((size, size), 1 / size)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 17])
def test_the_directed_one_contracts_by_its_expectation(size: int) -> None:
    """Over all shifts, the mean of |W x - mean|^2 is (n - 2) / (2 (n - 1)) |x - mean|^2."""
    graph = EquiDyn(directed=True)
    by_shift = {draw(0, size, step)[0]: step for step in range(400)}
    assert sorted(by_shift) == [*range(1, size)]
    matrices = [np.array(matrix(graph, size, step)) for step in by_shift.values()]
    spread = np.eye(size) - 1 / size
    expected = (size - 2) / (2 * (size - 1)) * spread
    np.testing.assert_allclose(contraction(matrices), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("size", "rate", "idle"), [(5, 1 / 2, 1 / 5), (17, 17 / 32, 2 / 17)])
def test_the_undirected_one_contracts_by_its_expectation(
    size: int, rate: float, idle: float
) -> None:
    """Over all shifts, starts and directions of x - mean: by 1/2 for 5 nodes, 17/32 for 17."""
    partners = [pairs(size, shift, start) for shift in range(1, size) for start in range(size)]
    matrices = []
    for peers in partners:
        mixing = np.eye(size)
        for node, others in enumerate(peers):
            for other in others:
                mixing[node, [node, other]] = 0.5
        matrices.append(mixing)
    assert np.trace(contraction(matrices)) / (size - 1) == pytest.approx(rate, abs=1e-12)
    sitting_out = np.mean([not others for peers in partners for others in peers])
    assert sitting_out == pytest.approx(idle, abs=1e-12)


def test_the_weights_of_equi_dyn() -> None:
    assert EquiDyn().weights(0, 4, 0) is None
    assert EquiDyn(eta=1.0, directed=True).weights(0, 4, 0) == (3 / 4,)
    verify(EquiDyn(eta=0.6, directed=True), 7, "doubly stochastic", weighted=True)
    verify(EquiDyn(eta=0.6), 7, "doubly stochastic", weighted=True)
    for eta in (0.0, 1.5):
        with pytest.raises(ConfigError, match=r"algo\.topology\.eta"):
            EquiDyn(eta=eta)
