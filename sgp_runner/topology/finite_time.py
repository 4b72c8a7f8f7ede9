"""Graphs of exact averaging in finitely many rounds: all nodes agree after the last round.

The graphs are from Takezawa et al. 2023. The k-peer hyper-hypercube (Alg. 1) needs a number of
nodes whose prime factors are at most ``k + 1``. The Simple Base-(k+1) graph (Alg. 2) and the
Base-(k+1) graph (Alg. 3) work for any number ``n`` of nodes, in at most ``2 log_(k+1)(n) + 2``
rounds. In a round a node exchanges with at most ``k`` others. If a set serves fewer nodes than it
contains, its idle nodes average in cliques, as in the authors' implementation; the product of all
rounds is the same without these averages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar, Protocol

from sgp_runner.topology.graphs import Peers, Phase, Topology, Weights
from sgp_runner.utils.errors import ConfigError, check_least

#: Node -> its peers in a round and their weights; idle nodes are omitted.
Round = dict[int, tuple[Peers, Weights]]
IDLE: tuple[Peers, Weights] = ((), ())


class Rounds(Topology, Protocol):
    """A graph that cycles through a list of rounds."""

    symmetric: ClassVar[bool] = True

    def rounds(self, size: int) -> Sequence[Round]: ...

    def of(self, rank: int, size: int, step: int) -> tuple[Peers, Weights]:
        rounds = self.rounds(size)
        return rounds[step % len(rounds)].get(rank, IDLE)

    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        return self.of(rank, size, step)[0]

    def weights(self, rank: int, size: int, step: int) -> Weights:
        return self.of(rank, size, step)[1]

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, len(self.rounds(size)))]


@dataclass(frozen=True)
class HyperHypercube(Rounds):
    """A k-peer hypercube: each step averages the nodes whose numbers differ only in one digit.

    peers: largest number of peers of a node in a step, k; no prime factor of the number of nodes
        may be above k + 1
    """

    peers: int = 1

    def __post_init__(self) -> None:
        check_least(1, "algo.topology", self, "peers")

    def check(self, size: int) -> None:
        if prod(factors(size, self.peers)) < size:
            needed = largest_prime_factor(size) - 1
            raise ConfigError(
                "algo.topology",
                f"{size} nodes have the prime factor {needed + 1}, above algo.topology.peers + 1 = "
                f"{self.peers + 1}: use algo.topology.peers={needed}, or algo.topology=base.",
            )

    def rounds(self, size: int) -> Sequence[Round]:
        return digits_in_turn(size, self.peers)


@dataclass(frozen=True)
class Base(Rounds):
    """The Base-(k+1) graph, exact after its last round for any number of nodes.

    peers: largest number of peers of a node in a step, k
    simple: true: the Simple Base-(k+1) graph, which may have more rounds; false: the Base-(k+1)
        graph
    """

    peers: int = 1
    simple: bool = False

    def __post_init__(self) -> None:
        check_least(1, "algo.topology", self, "peers")

    def rounds(self, size: int) -> Sequence[Round]:
        return shortest_rounds(size, self.peers, self.simple)


@functools.lru_cache(maxsize=16)
def digits_in_turn(size: int, k: int) -> list[Round]:
    return hyper_hypercube(range(size), k) or [{}]


@functools.lru_cache(maxsize=16)
def shortest_rounds(size: int, k: int, simple: bool) -> list[Round]:
    nodes = range(size)
    rounds = simple_base(nodes, k)
    if not simple:
        groups = prod(factors(size, k))
        width = size // groups
        inside = [simple_base(nodes[first : first + width], k) for first in nodes[::width]]
        across = [hyper_hypercube(nodes[first::width], k) for first in range(width)]
        divided = [*at_once(inside), *at_once(across)]
        rounds = min(divided, rounds, key=len)
    return rounds or [{}]


def factors(n: int, k: int) -> list[int]:
    """Return the fewest factors of ``n``, each at most ``k + 1``, in ascending order.

    Their product is ``n`` if no prime factor of ``n`` is above ``k + 1``.
    """
    result: list[int] = []
    for factor in range(k + 1, 1, -1):
        while n % factor == 0:
            result.append(factor)
            n //= factor
    return result[::-1]


def largest_prime_factor(n: int) -> int:
    factor = 2
    while factor * factor <= n:
        if n % factor:
            factor += 1
        else:
            n //= factor
    return n


def cliques(groups: Iterable[Sequence[int]]) -> Round:
    """Return the round in which each group averages its nodes."""
    return {
        node: (tuple(peer for peer in group if peer != node), (1 / len(group),) * (len(group) - 1))
        for group in groups
        if len(group) > 1
        for node in group
    }


def at_once(parts: Sequence[Sequence[Round]]) -> list[Round]:
    """Merge the rounds of disjoint sets of nodes; all sets have the same number of rounds."""
    return [together(rounds) for rounds in zip(*parts, strict=True)]


def together(rounds: Iterable[Round]) -> Round:
    return {node: edges for part in rounds for node, edges in part.items()}


def hyper_hypercube(nodes: range, k: int) -> list[Round]:
    """Return rounds, of which round l averages nodes whose positions differ only in digit l."""
    rounds = []
    place = 1
    for factor in factors(len(nodes), k):
        lowest = [first for first in range(len(nodes)) if first // place % factor == 0]
        rounds.append(cliques(nodes[i : i + place * factor : place] for i in lowest))
        place *= factor
    return rounds


def simple_base(nodes: range, k: int) -> list[Round]:
    """Return the rounds of the Simple Base-(k+1) graph; comments give the algorithm's steps.

    Each set of nodes averages (2), serves the sets after it (3), and averages again (4). Serving
    makes the mean of the later sets equal to the mean of all nodes.
    """
    if prod(factors(len(nodes), k)) == len(nodes):  # 0
        return hyper_hypercube(nodes, k)
    sets = cut(nodes, k)  # 1
    members = [nodes_of(blocks) for blocks in sets]
    before = [hyper_hypercube(member, k) for member in members]
    after = [
        at_once([hyper_hypercube(block, k) for block in blocks]) or hyper_hypercube(member, k)
        for blocks, member in zip(sets, members, strict=True)
    ]
    served = len(before[0])
    last = len(sets) - 1
    rounds = []
    for step in range(served + 1 + len(after[0])):  # 5
        turn = step - served
        parts = [cycled(first, step) for first in before] if turn < 0 else []  # 2
        if 0 <= turn < last:
            parts.append(serve(sets[turn], range(members[turn].stop, nodes.stop), k + 1))  # 3
        begun = [*range(min(max(turn, 0), last)), *([last] if turn >= last else [])]
        parts += [cycled(after[i], turn - min(i + 1, last)) for i in begun]  # 4
        rounds.append(together(parts))
    return rounds


def cut(nodes: range, k: int) -> list[list[range]]:
    """Return consecutive sets of equal blocks, one per nonzero digit of the number of nodes.

    Digits are in base ``k + 1``, most significant first.
    """
    sets = []
    block = 1
    while block * (k + 1) <= len(nodes):
        block *= k + 1
    while nodes:
        size = len(nodes) // block * block
        if size:
            sets.append([nodes[i : i + block] for i in range(0, size, block)])
        nodes = nodes[size:]
        block //= k + 1
    return sets


def nodes_of(blocks: Sequence[range]) -> range:
    return range(blocks[0].start, blocks[-1].stop)


def cycled(rounds: Sequence[Round], step: int) -> Round:
    return rounds[step % len(rounds)] if rounds else {}


def serve(blocks: Sequence[range], others: range, base: int) -> Round:
    """Return the round in which each of ``others`` exchanges with one node per block.

    The remaining nodes of the blocks average in cliques.
    """
    serving = nodes_of(blocks)
    weight = len(serving) / ((len(serving) + len(others)) * len(blocks))
    groups = [tuple(block[place] for block in blocks) for place in range(len(others))]
    edges: Round = {
        node: (peers, (weight,) * len(peers)) for node, peers in zip(others, groups, strict=True)
    }
    edges |= {peer: ((node,), (weight,)) for node in others for peer in edges[node][0]}
    left = [node for block in blocks for node in block[len(others) :]]
    bounds = pairwise([*range(0, len(left), base), len(left)])
    return edges | cliques(left[begin:end] for begin, end in bounds)
