"""The communication graphs of gossip algorithms.

A topology returns the peers that node ``rank`` of ``size`` sends to (``out_peers``) and receives
from (``in_peers``) in ``step``. Sender and receiver compute their peers independently, so the two
methods must agree; `matrix` builds the resulting mixing matrix, which the tests use as an oracle.
By default a node keeps the share ``1 / (peers + 1)`` and sends the same share to each peer;
``weights`` can change these shares.

Sources: Assran et al. 2019 (directed exponential), Lian et al. 2017 (ring), Lian et al. 2018
(bipartite pairs).
"""

from __future__ import annotations

import functools
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import ClassVar, Protocol, final, runtime_checkable

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.sums import sum_in_order

Peers = tuple[int, ...]
Weights = tuple[float, ...]
Phase = tuple[float, int]  # the first epoch, and the period of the graph in steps


@dataclass(frozen=True, slots=True)
class Exchange:
    """The messages of one node in one step.

    outgoing: nodes to which the node sends
    incoming: nodes from which it receives
    weights: share for each of ``outgoing``, as in `Topology.weights`
    """

    outgoing: Peers
    incoming: Peers
    weights: Weights | None


@runtime_checkable
class Topology(Protocol):
    """A graph that may change from step to step and from epoch to epoch.

    In a ``symmetric`` graph a node receives from the same nodes that it sends to in a step.

    repeats: whether the graph repeats after the steps of each of its `phases`
    """

    repeats: ClassVar[bool] = True

    @property
    def symmetric(self) -> bool: ...
    def out_peers(self, rank: int, size: int, step: int) -> Peers: ...

    def in_peers(self, rank: int, size: int, step: int) -> Peers:
        return self.out_peers(rank, size, step)

    def weights(self, rank: int, size: int, step: int) -> Weights | None:
        """Return the share for each of ``out_peers``; the node keeps the rest.

        None means equal shares for the node and its peers. In a symmetric graph an edge has the
        same weight in both directions.
        """
        return None

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 1)]

    def at(self, epoch: float) -> Topology:
        """Return the graph of ``epoch``."""
        return self

    def check(self, size: int) -> None:
        """Raise ConfigError if the graph cannot have ``size`` nodes."""
        return None


def sent_weights(topology: Topology, rank: int, size: int, step: int) -> Weights:
    """Return the share that each of ``out_peers`` receives."""
    weights = topology.weights(rank, size, step)
    if weights is not None:
        return weights
    peers = len(topology.out_peers(rank, size, step))
    return (1 / (peers + 1),) * peers


def matrix(topology: Topology, size: int, step: int) -> list[list[float]]:
    """Return the mixing matrix ``P`` [size, size], whose columns sum to one.

    ``P[i][j]`` is the share of ``j``'s message that ``i`` receives.
    """
    mixing = [[0.0] * size for _ in range(size)]
    for j in range(size):
        weights = sent_weights(topology, j, size, step)
        mixing[j][j] += 1 - sum_in_order(weights)
        for i, weight in zip(topology.out_peers(j, size, step), weights, strict=True):
            mixing[i][j] += weight
    return mixing


@functools.cache
def powers(base: int, size: int) -> tuple[int, ...]:
    """Return 1, ``base``, ``base^2``, ... below ``size``; always at least 1."""
    powers = [1]
    while powers[-1] * base < size:
        powers.append(powers[-1] * base)
    return tuple(powers)


@functools.cache
def multiples(m: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Return ``1..m`` times each power of ``m + 1`` below ``size``."""
    return tuple(tuple(j * power for j in range(1, m + 1)) for power in powers(m + 1, size))


def shifted(rank: int, size: int, hops: Sequence[int]) -> Peers:
    """Return ``(rank + hop) mod size`` for each hop, without duplicates and without ``rank``."""
    if len(hops) == 1:  # the case of most graphs, for every node and step
        peer = (rank + hops[0]) % size
        return () if peer == rank else (peer,)
    return tuple(dict.fromkeys(peer for hop in hops if (peer := (rank + hop) % size) != rank))


class Circulant(Topology):
    """A graph in which all nodes have the same hops: a node sends ``hop`` nodes ahead.

    Verification checks only node 0, so weights must not depend on the rank.
    """

    @abstractmethod
    def hops(self, size: int, step: int) -> Sequence[int]: ...

    @final
    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        return shifted(rank, size, self.hops(size, step))

    @final
    def in_peers(self, rank: int, size: int, step: int) -> Peers:
        hops = self.hops(size, step)
        return shifted(rank, size, hops if self.symmetric else [-hop for hop in hops])


@dataclass(frozen=True)
class DirectedExponential(Circulant):
    """Hops ``j (m+1)^i`` for ``j = 1..m``; ``i`` cycles from step to step. One peer: 1, 2, 4, ...

    With several peers, the last ``i`` may reach fewer of them: with 3 peers and 32 nodes, the hops
    16, 32 and 48 reach one peer.

    peers: peers per step, m, or a schedule by epoch: {0: 2, 30: 1} is two peers, then one peer from
        epoch 30 on
    """

    peers: int | Mapping[int, int] = 1
    symmetric: ClassVar[bool] = False

    def __post_init__(self) -> None:
        schedule = self.peers if isinstance(self.peers, Mapping) else {0: self.peers}
        if 0 not in schedule or any(epoch < 0 or m < 1 for epoch, m in schedule.items()):
            raise ConfigError(
                "algo.topology.peers",
                f"{self.peers} must be at least 1 and, as a schedule, start at epoch 0.",
            )

    def at(self, epoch: float) -> DirectedExponential:
        if isinstance(self.peers, int):
            return self
        return with_peers(self.peers[max(start for start in self.peers if start <= epoch)])

    def hops(self, size: int, step: int) -> tuple[int, ...]:
        period = multiples(self.peers if isinstance(self.peers, int) else self.peers[0], size)
        return period[step % len(period)]

    def phases(self, size: int) -> list[Phase]:
        schedule = {0: self.peers} if isinstance(self.peers, int) else self.peers
        return [(float(epoch), len(multiples(schedule[epoch], size))) for epoch in sorted(schedule)]

    def check(self, size: int) -> None:
        most = max(self.peers.values()) if isinstance(self.peers, Mapping) else self.peers
        if most >= size > 1:
            raise ConfigError(
                "algo.topology.peers", f"{most} peers need at least {most + 1} nodes; nodes={size}."
            )


@functools.cache
def with_peers(peers: int) -> DirectedExponential:
    return DirectedExponential(peers)


@dataclass(frozen=True)
class BidirectionalExponential(Circulant):
    """One peer per step; the hop cycles through +1, -1, +2, -2, +4, ... without duplicates."""

    symmetric: ClassVar[bool] = False

    def cycle(self, size: int) -> list[int]:
        return list(
            dict.fromkeys(sign * power % size for power in powers(2, size) for sign in (1, -1))
        )

    def hops(self, size: int, step: int) -> list[int]:
        cycle = self.cycle(size)
        return [cycle[step % len(cycle)]]

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, len(self.cycle(size)))]


@dataclass(frozen=True)
class StaticExponential(Circulant):
    """All hops 1, 2, 4, ... in every step."""

    symmetric: ClassVar[bool] = False

    def hops(self, size: int, step: int) -> tuple[int, ...]:
        return powers(2, size)


@dataclass(frozen=True)
class Ring(Circulant):
    """A ring: both neighbours, with weights 1/3; two nodes have one neighbour, with weights 1/2."""

    symmetric: ClassVar[bool] = True

    def hops(self, size: int, step: int) -> tuple[int, ...]:
        return 1, -1


@dataclass(frozen=True)
class BipartiteExponential(Topology):
    """Disjoint pairs of an odd and an even node, with hops 1, 3, 5, 9, ... ``1 + 2^j`` in turn.

    An odd number ``n`` of nodes uses the graph of ``n + 1`` nodes without the last node, so in each
    step one even node is idle.
    """

    symmetric: ClassVar[bool] = True

    def hops(self, size: int) -> list[int]:
        return [1] + [1 + power for power in powers(2, size)[1:] if 1 + power < size]

    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        even = size + size % 2
        hops = self.hops(even)
        hop = hops[step % len(hops)]
        peer = (rank + (hop if rank % 2 else -hop)) % even
        return (peer,) if peer < size else ()

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, len(self.hops(size + size % 2)))]


@dataclass(frozen=True)
class Complete(Circulant):
    """All other nodes, in every step."""

    symmetric: ClassVar[bool] = True

    def hops(self, size: int, step: int) -> range:
        return range(1, size)


@dataclass(frozen=True)
class Torus(Topology):
    """The four neighbours on a torus, a grid with wrap-around that is as square as possible.

    If the number of nodes is prime, the grid is a ring.
    """

    symmetric: ClassVar[bool] = True

    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        rows = max(d for d in range(1, isqrt(size) + 1) if size % d == 0)
        columns = size // rows
        row, column = divmod(rank, columns)
        around = [(row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column)]
        peers = [r % rows * columns + c % columns for r, c in around]
        return tuple(dict.fromkeys(peer for peer in peers if peer != rank))


@dataclass(frozen=True)
class RandomMatching(Topology):
    """A new random pairing in every step; if the number of nodes is odd, one node is idle.

    seed: seed of the pairing, independent of the run's seed
    """

    seed: int = 0
    symmetric: ClassVar[bool] = True
    repeats: ClassVar[bool] = False

    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        return matching(self.seed, size, step)[rank]

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 64)]  # not periodic; these steps represent all


@functools.lru_cache(maxsize=64)
def matching(seed: int, size: int, step: int) -> tuple[Peers, ...]:
    """Return the partner of every node; idle nodes have none."""
    order = list(range(size))
    random.Random(f"{seed}/{step}").shuffle(order)
    partners: list[Peers] = [()] * size
    for a, b in zip(order[::2], order[1::2], strict=False):  # positions 0-1, 2-3, ... are pairs
        partners[a], partners[b] = (b,), (a,)
    return tuple(partners)
