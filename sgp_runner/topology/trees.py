"""Trees: graphs with exactly one path between any two nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.topology.graphs import Peers, Topology, Weights
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class Tree(Topology):
    """A tree with root 0, in which node i > 0 has the parent floor((i - 1) / branches).

    An edge has the weight 1 / (1 + the larger degree of its two nodes), so that averages are exact
    in the limit (Metropolis weights; Xiao, Boyd & Kim 2007).

    branches: largest number of children of a node; 1 is a chain, and the number of nodes or more is
        a star
    """

    branches: int = 2
    symmetric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least(1, "algo.topology", self, "branches")

    def neighbours(self, rank: int, size: int) -> Iterator[int]:
        """Yield the parent and the children of a node, in order."""
        if rank > 0:
            yield (rank - 1) // self.branches
        first = rank * self.branches + 1
        yield from range(first, min(first + self.branches, size))

    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        return tuple(self.neighbours(rank, size))

    def weights(self, rank: int, size: int, step: int) -> Weights:
        def degree(node: int) -> int:
            children = min(self.branches, max(0, size - 1 - node * self.branches))
            return children + (node > 0)

        degree_here = degree(rank)
        return tuple(1 / (1 + max(degree_here, degree(j))) for j in self.neighbours(rank, size))


def is_tree(topology: Topology, size: int) -> bool:
    """Return whether a connected symmetric graph is a tree that is the same in every step."""
    edges = sum(len(topology.out_peers(rank, size, 0)) for rank in range(size)) // 2
    return topology.phases(size) == [(0.0, 1)] and edges == size - 1
