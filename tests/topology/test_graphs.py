"""Peer lists are literal; every graph is consistent, stochastic and connected for every number of
nodes it supports.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from helpers.refusals import accepted

from sgp_runner.topology.equi_topo import EquiDyn
from sgp_runner.topology.finite_time import Base, HyperHypercube
from sgp_runner.topology.graphs import (
    BidirectionalExponential,
    BipartiteExponential,
    Complete,
    DirectedExponential,
    Peers,
    RandomMatching,
    Ring,
    StaticExponential,
    Topology,
    Torus,
    matrix,
)
from sgp_runner.topology.verify import verify
from sgp_runner.utils.errors import ConfigError

ALL: list[Topology] = [
    DirectedExponential(),
    DirectedExponential(peers=2),
    DirectedExponential(peers=3),
    BidirectionalExponential(),
    StaticExponential(),
    Ring(),
    BipartiteExponential(),
    Complete(),
    Torus(),
    RandomMatching(),
    Base(),
    Base(peers=2, simple=True),
    HyperHypercube(),
    EquiDyn(),
    EquiDyn(directed=True, eta=0.5),
]


@pytest.mark.parametrize(
    ("graph", "rank", "size", "peers"),
    [
        # 1, 2, 4 ahead
        (DirectedExponential(), 0, 8, [(1,), (2,), (4,), (1,)]),
        (DirectedExponential(), 5, 6, [(0,), (1,), (3,), (0,)]),
        (DirectedExponential(), 0, 1, [()]),
        # Several peers are at hops of j times powers of their number plus 1.
        (DirectedExponential(peers=2), 0, 9, [(1, 2), (3, 6), (1, 2)]),
        (DirectedExponential(peers=3), 1, 32, [(2, 3, 4), (5, 9, 13), (17,), (2, 3, 4)]),
        (BidirectionalExponential(), 0, 16, [(n,) for n in (1, 15, 2, 14, 4, 12, 8, 1)]),
        (BidirectionalExponential(), 0, 4, [(1,), (3,), (2,), (1,)]),
        (BipartiteExponential(), 1, 8, [(2,), (4,), (6,), (2,)]),
        (Ring(), 0, 5, [(1, 4)] * 10),
        (Ring(), 0, 2, [(1,)]),
        (StaticExponential(), 0, 6, [(1, 2, 4)]),
        (Complete(), 1, 4, [(2, 3, 0)]),
    ],
    ids=str,
)
def test_whom_a_node_sends_to_in_each_step(
    graph: Topology, rank: int, size: int, peers: list[Peers]
) -> None:
    assert [graph.out_peers(rank, size, step) for step in range(len(peers))] == peers


def test_whom_a_node_of_the_directed_exponential_graph_hears() -> None:
    assert [DirectedExponential().in_peers(0, 8, k) for k in range(3)] == [(7,), (6,), (4,)]


@pytest.mark.parametrize(
    ("rank", "size", "peers"),
    [
        (0, 6, [1, 2, 3]),  # two rows of three
        (4, 9, [1, 3, 5, 7]),
        (0, 7, [1, 6]),  # a prime number of nodes: a ring
    ],
)
def test_neighbours_in_a_torus(rank: int, size: int, peers: list[int]) -> None:
    assert sorted(Torus().out_peers(rank, size, 0)) == peers


@pytest.mark.parametrize("m", range(1, 6))
def test_m_peers_are_never_oneself_nor_repeated(m: int) -> None:
    graph = DirectedExponential(peers=m)
    for size in range(m + 1, 65):
        for k in range(8):
            peers = graph.out_peers(3 % size, size, k)
            assert len(set(peers)) == len(peers) > 0
            assert 3 % size not in peers


def test_the_bipartite_graph_pairs_odd_with_even() -> None:
    graph = BipartiteExponential()
    for size in range(2, 41, 2):
        for k in range(6):
            partner = [graph.out_peers(rank, size, k)[0] for rank in range(size)]
            assert all(
                partner[partner[rank]] == rank and (partner[rank] - rank) % 2
                for rank in range(size)
            )


@pytest.mark.parametrize("size", [3, 5, 31])
def test_in_a_bipartite_graph_of_odd_numbers_one_even_node_sits_out(size: int) -> None:
    graph = BipartiteExponential()
    assert [graph.out_peers(rank, 3, 0) for rank in range(3)] == [(), (2,), (1,)]
    for k in range(6):
        peers = [graph.out_peers(rank, size, k) for rank in range(size)]
        assert [rank % 2 for rank in range(size) if not peers[rank]] == [0]
        assert all(
            peers[peer] == (rank,) and (peer - rank) % 2
            for rank in range(size)
            for peer in peers[rank]
        )
    verify(graph, size, "odd with even")


def test_a_random_matching_pairs_and_leaves_one_out_of_an_odd_number() -> None:
    graph = RandomMatching(seed=5)
    for size, idle in ((8, 0), (7, 1)):
        peers = [graph.out_peers(rank, size, 3) for rank in range(size)]
        assert sum(not targets for targets in peers) == idle
        assert all(peers[targets[0]] == (rank,) for rank, targets in enumerate(peers) if targets)
    assert len({tuple(graph.out_peers(rank, 8, k) for rank in range(8)) for k in range(10)}) > 5


@pytest.mark.parametrize("topology", ALL, ids=str)
def test_both_ends_agree_and_weights_sum_to_one(topology: Topology) -> None:
    for size in (size for size in range(1, 41) if accepted(topology.check, size)):
        for k in range(7):
            out = {
                (rank, peer) for rank in range(size) for peer in topology.out_peers(rank, size, k)
            }
            into = {
                (peer, rank) for rank in range(size) for peer in topology.in_peers(rank, size, k)
            }
            assert out == into
            mixing = matrix(topology, size, k)
            assert all(abs(sum(mixing[i][j] for i in range(size)) - 1) < 1e-12 for j in range(size))
            assert all(
                abs(sum(row) - 1) < 1e-12 for row in mixing
            )  # these graphs are regular, so rows sum to one too
            if topology.symmetric:
                assert all(
                    abs(mixing[i][j] - mixing[j][i]) < 1e-12
                    for i in range(size)
                    for j in range(size)
                )


@pytest.mark.parametrize(
    "topology", [graph for graph in ALL if not isinstance(graph, RandomMatching | EquiDyn)], ids=str
)
def test_a_graph_starts_over_after_its_period(topology: Topology) -> None:
    for size in (size for size in range(1, 20) if accepted(topology.check, size)):
        ((_, period),) = topology.phases(size)
        for step in range(2 * period):
            assert [topology.out_peers(rank, size, step) for rank in range(size)] == [
                topology.out_peers(rank, size, step + period) for rank in range(size)
            ]


@pytest.mark.parametrize("topology", ALL, ids=str)
def test_over_time_everybody_reaches_everybody(topology: Topology) -> None:
    for size in (size for size in range(2, 34) if accepted(topology.check, size)):
        reached = {0}
        edges = {
            (rank, peer)
            for k in range(24)
            for rank in range(size)
            for peer in topology.out_peers(rank, size, k)
        }
        for _ in range(size):
            reached |= {peer for rank, peer in edges if rank in reached}
        assert reached == set(range(size))


@pytest.mark.parametrize("size", range(2, 33))
def test_averaging_is_exact_after_log2_n_steps_for_powers_of_two_only(size: int) -> None:
    steps = (size - 1).bit_length()
    product: list[list[Fraction | int]] = [
        [Fraction(int(i == j)) for j in range(size)] for i in range(size)
    ]
    for k in range(steps):
        mixing = [
            [Fraction(weight) for weight in row] for row in matrix(DirectedExponential(), size, k)
        ]
        product = [
            [
                sum(mixing[i][m] * product[m][j] for m in range(size) if mixing[i][m])
                for j in range(size)
            ]
            for i in range(size)
        ]
    exact = all(value == Fraction(1, size) for row in product for value in row)
    assert exact == (size & (size - 1) == 0)


def test_the_number_of_peers_follows_a_schedule() -> None:
    graph = DirectedExponential(peers={0: 2, 30: 1})
    assert [len(graph.at(epoch).out_peers(0, 9, 0)) for epoch in (0, 29.9, 30, 80)] == [2, 2, 1, 1]


@pytest.mark.parametrize("peers", [0, -1, {}, {1: 2}, {0: 0}, {0: 1, -5: 2}])
def test_impossible_numbers_of_peers_are_refused(peers: int | dict[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"algo\.topology\.peers"):
        DirectedExponential(peers=peers)


def test_more_peers_than_other_nodes_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 peers need at least 5 nodes; nodes=4"):
        DirectedExponential(peers={0: 4, 3: 1}).check(4)
