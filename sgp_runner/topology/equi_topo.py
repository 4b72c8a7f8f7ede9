"""EquiDyn (Song et al. 2022): one peer per step, a random number ``v`` of nodes ahead.

In each step one ``v`` is drawn for all nodes. The expected consensus distance of ``n`` nodes
shrinks at a rate that does not depend on ``n``.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.topology.graphs import Peers, Phase, Topology, Weights
from sgp_runner.utils.errors import ConfigError


@dataclass(frozen=True)
class EquiDyn(Topology):
    """OU-EquiDyn, which pairs nodes ``v`` apart, or OD-EquiDyn, which sends ``v`` nodes ahead.

    directed: true: OD-EquiDyn, for push-sum
    eta: sets the weight of a peer to eta (n - 1) / n; null: n / (2 (n - 1)), which gives a node and
        its peer 1/2 each
    seed: seed of the draws, independent of the run's seed
    """

    directed: bool = False
    eta: float | None = None
    seed: int = 0
    repeats: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.eta is not None and not 0 < self.eta <= 1:
            raise ConfigError(
                "algo.topology.eta", f"{self.eta} must be above 0 and at most 1, or null."
            )

    @property
    def symmetric(self) -> bool:
        return not self.directed

    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        if size == 1:
            return ()
        shift, start = draw(self.seed, size, step)
        return ((rank + shift) % size,) if self.directed else pairs(size, shift, start)[rank]

    def in_peers(self, rank: int, size: int, step: int) -> Peers:
        if size == 1 or not self.directed:
            return self.out_peers(rank, size, step)
        shift, _ = draw(self.seed, size, step)
        return ((rank - shift) % size,)

    def weights(self, rank: int, size: int, step: int) -> Weights | None:
        if self.eta is None:
            return None
        return (self.eta * (size - 1) / size,) * len(self.out_peers(rank, size, step))

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 64)]  # not periodic; these steps represent all


@functools.lru_cache(maxsize=64)
def draw(seed: int, size: int, step: int) -> tuple[int, int]:
    """Return the shift of a step, from 1 to ``size - 1``, and the node at which pairing starts."""
    drawn = random.Random(f"{seed}/{step}")
    return drawn.randrange(1, size), drawn.randrange(size)


@functools.lru_cache(maxsize=64)
def pairs(size: int, shift: int, start: int) -> tuple[Peers, ...]:
    """Return the partner of each node; partners are ``shift`` apart.

    Nodes are visited in order from ``start``; each is paired if it and its partner are free.
    """
    partners: list[Peers] = [()] * size
    for node in (*range(start, size), *range(start)):
        other = (node + shift) % size
        if not partners[node] and not partners[other]:
            partners[node], partners[other] = (other,), (node,)
    return tuple(partners)
