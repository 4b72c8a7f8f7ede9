"""A graph that is written down."""

from __future__ import annotations

from dataclasses import dataclass

from sgp_runner.topology.graphs import Peers, Phase, Topology


@dataclass(frozen=True)
class Literal(Topology):
    """The recorded graph of each step: whom each node sends to and, where it differs, receives
    from.
    """

    out: tuple[tuple[Peers, ...], ...]
    into: tuple[tuple[Peers, ...], ...] | None = None
    symmetric: bool = False

    def out_peers(self, rank: int, size: int, step: int) -> Peers:
        return self.out[step % len(self.out)][rank]

    def in_peers(self, rank: int, size: int, step: int) -> Peers:
        if self.into is not None:
            return self.into[step % len(self.into)][rank]
        return tuple(
            src for src, peers in enumerate(self.out[step % len(self.out)]) if rank in peers
        )

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, len(self.out))]
