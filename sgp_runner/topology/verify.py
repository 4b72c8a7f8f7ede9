"""Verification of a gossip schedule for a number of nodes, before the first step.

Checks for each step of the period, in each phase of a schedule by epoch:

* every send has a matching receive, and every receive a matching send. A node sends all messages
  of a step before it receives any, and sends never block. A receive of step ``k`` therefore waits
  only for earlier steps of other nodes, and there is no cycle of waits;
* no node sends to itself, to a node that does not exist, or twice to the same node;
* columns of the mixing matrix sum to one, since a node keeps the share that it does not send; if
  an algorithm requires it, rows also sum to one, or a node and its peers have equal weights.

Over the period, paths lead from every node to every other node. The cost of the verification is
proportional to the number of edges in one period, or, if all nodes have the same hops, of those of
one node.

`sgp_runner.assembly.dry_run` verifies the calls that algorithms make on a graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Literal

from sgp_runner.topology.graphs import Circulant, Peers, Topology, Weights, sent_weights
from sgp_runner.utils.errors import ConfigError

Need = Literal["columns", "doubly stochastic", "odd with even", "balanced"]
KEY = "algo.topology"


def verify(
    topology: Topology,
    size: int,
    needs: Need = "columns",
    by: str = "this algorithm",
    weighted: bool = False,
) -> None:
    """Raise ConfigError, with step and edge, unless ``topology`` meets the ``needs`` of ``by``.

    by: title of the algorithm
    needs: ``columns``: columns sum to one; ``doubly stochastic``: rows also sum to one;
        ``odd with even``: all edges join an odd and an even rank, in both directions, and every odd
        rank has an edge; ``balanced``: each node sends as many messages as it receives
    weighted: true: the algorithm uses the weights of the graph; false: it uses equal weights
    """
    topology.check(size)
    for epoch, period in topology.phases(size):
        graph = topology.at(epoch)
        if isinstance(graph, Circulant) and needs != "odd with even":
            verify_circulant(graph, size, period, by, weighted)
            continue
        reaches: list[set[int]] = [set() for _ in range(size)]
        for step in range(period):
            out = [graph.out_peers(rank, size, step) for rank in range(size)]
            into = [graph.in_peers(rank, size, step) for rank in range(size)]
            where = f"in step {step}" + (f" from epoch {epoch:g} on" if epoch else "")
            check_edges(out, into, where)
            weights = [sent_weights(graph, rank, size, step) for rank in range(size)]
            check_weights(out, weights, where)
            if not weighted:
                check_equal(weights, by, where)
            if needs != "columns":
                NEEDS[needs](out, into, weights, f"{by} needs", where)
            for reached, peers in zip(reaches, out, strict=True):
                reached.update(peers)
        check_connected(reaches, period)


def verify_circulant(graph: Circulant, size: int, period: int, by: str, weighted: bool) -> None:
    """Verify a graph at node 0, which represents all nodes.

    Every send has a receive, and the rows of the mixing matrix have the same sums as its columns.
    All nodes are connected if no number above 1 divides all hops and ``size``.
    """
    hops = [graph.hops(size, step) for step in range(period)]
    for step in range(period):
        out, weights = [graph.out_peers(0, size, step)], [sent_weights(graph, 0, size, step)]
        check_weights(out, weights, f"in step {step}")
        if not weighted:
            check_equal(weights, by, f"in step {step}")
    if gcd(size, *(hop for step_hops in hops for hop in step_hops)) > 1:
        raise not_connected("node 0 to node 1", period)


def verify_symmetric(topology: Topology, size: int, by: str, weighted: bool = True) -> None:
    """Raise ConfigError unless the weights of ``topology`` are doubly stochastic."""
    if not topology.symmetric:
        raise ConfigError(
            KEY,
            f"{by} needs a symmetric graph: ring, bipartite, complete, torus, tree, "
            "random_matching, base, equi_dyn, hyper_hypercube, or edges with each edge in both "
            "directions.",
        )
    verify(topology, size, "doubly stochastic", by, weighted)


def smallest_eigenvalue(topology: Topology, size: int) -> float:
    """Return the smallest eigenvalue of the mixing matrix of a symmetric graph in step 0."""
    import numpy as np
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import eigsh

    peers = [topology.out_peers(rank, size, 0) for rank in range(size)]
    weights = [sent_weights(topology, rank, size, 0) for rank in range(size)]
    rows = np.repeat(np.arange(size), [len(row) for row in peers])
    columns = np.array([peer for row in peers for peer in row], dtype=int)
    shares = np.array([share for row in weights for share in row])
    mixing = coo_array((shares, (rows, columns)), (size, size))
    mixing = mixing + diags_array([1.0 - sum(row) for row in weights])
    if size < 64:
        return float(np.linalg.eigvalsh(mixing.toarray())[0])
    return float(eigsh(mixing, 1, which="SA", return_eigenvectors=False)[0])


def topologies(part: object) -> Iterator[Topology]:
    """Yield the topologies of an algorithm and of the algorithms inside it."""
    if isinstance(part, Topology):
        yield part
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from topologies(getattr(part, field.name))


def check_edges(out: Sequence[Peers], into: Sequence[Peers], where: str) -> None:
    """Check that every send has a matching receive, and every receive a matching send."""
    size = len(out)
    senders: list[list[int]] = [[] for _ in out]
    for src, peers in enumerate(out):
        for dst in peers:
            if not 0 <= dst < size or dst == src:
                who = "itself" if dst == src else f"node {dst}, which does not exist"
                raise ConfigError(
                    KEY, f"{where} node {src} sends to {who}; nodes are 0 to {size - 1}."
                )
            senders[dst].append(src)
        if len(set(peers)) < len(peers):
            twice = next(dst for dst in peers if peers.count(dst) > 1)
            raise ConfigError(KEY, f"{where} the edge {src} -> {twice} is listed twice.")
    for dst, (sends, receives) in enumerate(zip(senders, into, strict=True)):
        if sends != sorted(receives):
            if unread := set(sends) - set(receives):
                raise ConfigError(
                    KEY,
                    f"{where} node {min(unread)} sends to node {dst}, which does not receive it.",
                )
            in_vain = next(src for src in receives if src not in sends or receives.count(src) > 1)
            raise ConfigError(
                KEY, f"{where} node {dst} waits for node {in_vain}, which does not send to it."
            )


def check_weights(out: Sequence[Peers], weights: Sequence[Weights], where: str) -> None:
    """Check that each peer gets a positive weight, and that a node's weights sum to at most 1."""
    for rank, (peers, shares) in enumerate(zip(out, weights, strict=True)):
        if len(shares) != len(peers):
            raise ConfigError(
                KEY, f"{where} node {rank} has {len(peers)} peers and {len(shares)} weights."
            )
        if any(share <= 0 for share in shares) or sum(shares) > 1 + 1e-9:
            raise ConfigError(
                KEY, f"{where} the weights of node {rank} must be positive and sum to at most 1."
            )


def check_equal(weights: Sequence[Weights], by: str, where: str) -> None:
    for rank, shares in enumerate(weights):
        if any(abs(share * (len(shares) + 1) - 1) > 1e-9 for share in shares):
            raise ConfigError(
                KEY,
                f"{by} gives a node and its peers equal weights, but {where} the graph gives node "
                f"{rank} unequal ones: use ring, complete, random_matching or hyper_hypercube.",
            )


def check_rows(
    out: Sequence[Peers],
    into: Sequence[Peers],
    weights: Sequence[Weights],
    needs: str,
    where: str,
) -> None:
    received = [1 - sum(shares) for shares in weights]
    for peers, shares in zip(out, weights, strict=True):
        for peer, share in zip(peers, shares, strict=True):
            received[peer] += share
    for rank, total in enumerate(received):
        if abs(total - 1) > 1e-9:
            raise ConfigError(
                KEY,
                f"{needs} a doubly stochastic mixing matrix, but {where} row {rank} sums to "
                f"{total:.3g}: give all nodes as many peers, or use algo=sgp.",
            )


def check_balance(
    out: Sequence[Peers],
    into: Sequence[Peers],
    weights: Sequence[Weights],
    needs: str,
    where: str,
) -> None:
    for rank, (peers, senders) in enumerate(zip(out, into, strict=True)):
        if len(peers) != len(senders):
            counts = f"{where} node {rank} sends {len(peers)} and receives {len(senders)}"
            raise ConfigError(
                KEY,
                f"{needs} equal numbers of sent and received messages: {counts}; use network=gloo.",
            )


def check_pairs(
    out: Sequence[Peers],
    into: Sequence[Peers],
    weights: Sequence[Weights],
    needs: str,
    where: str,
) -> None:
    """Check that the waits of AD-PSGD cannot form a cycle.

    Odd ranks wait for a specific even rank; even ranks never wait for a specific rank.
    """
    for rank, (peers, senders) in enumerate(zip(out, into, strict=True)):
        for peer in peers:
            if (peer - rank) % 2 == 0:
                raise ConfigError(
                    KEY,
                    f"{needs} edges between odd and even ranks only: "
                    f"{where} there is {rank} -> {peer}; use bipartite, ring or such edges.",
                )
        if set(peers) != set(senders):
            one = min(set(peers) ^ set(senders))
            raise ConfigError(
                KEY,
                f"{needs} edges in both directions: {where} nodes {rank} and {one} have only one.",
            )
        if rank % 2 and not peers:
            raise ConfigError(
                KEY, f"{needs} a peer for every odd rank: {where} node {rank} has none."
            )


NEEDS: dict[
    Need, Callable[[Sequence[Peers], Sequence[Peers], Sequence[Weights], str, str], None]
] = {
    "doubly stochastic": check_rows,
    "odd with even": check_pairs,
    "balanced": check_balance,
}


def check_connected(reaches: Sequence[set[int]], period: int) -> None:
    """Check that paths lead from node 0 to every node and back."""
    back: list[set[int]] = [set() for _ in reaches]
    for src, peers in enumerate(reaches):
        for dst in peers:
            back[dst].add(src)
    for edges, route in ((reaches, "node 0 to node {}"), (back, "node {} to node 0")):
        seen = {0}
        front = [0]
        while front:
            new = edges[front.pop()] - seen
            seen |= new
            front.extend(new)
        if len(seen) < len(reaches):
            lost = next(rank for rank in range(len(reaches)) if rank not in seen)
            raise not_connected(route.format(lost), period)


def not_connected(route: str, period: int) -> ConfigError:
    steps = f"over all its {period} steps" if period > 1 else "in its only step"
    return ConfigError(KEY, f"{steps} no path leads from {route}, so they can never agree.")
