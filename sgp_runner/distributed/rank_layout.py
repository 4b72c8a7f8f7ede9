"""Mapping of the processes of a real run to nodes, devices and servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankLayout:
    """One process of a real run.

    ``nodes * devices`` processes compute gradients; a node has consecutive ranks. Each server is
    one more process.
    """

    process: int
    nodes: int
    devices: int = 1

    @property
    def is_server(self) -> bool:
        return self.process >= self.nodes * self.devices

    @property
    def node_rank(self) -> int:
        """Return the rank used by algorithms, which counts nodes first, then servers."""
        return self.node_rank_of(self.process)

    @property
    def device(self) -> int:
        """Return the index of the device within its node; 0 for a server."""
        return 0 if self.is_server else self.process % self.devices

    def node_rank_of(self, process: int) -> int:
        return (
            max(0, process - self.nodes * self.devices)
            + min(process, self.nodes * self.devices) // self.devices
        )

    def process_of(self, rank: int) -> int:
        """Return the peer at node rank ``rank``: the same device of that node, or the server."""
        return (
            rank * self.devices + self.device
            if rank < self.nodes
            else self.nodes * self.devices + rank - self.nodes
        )

    def node(self, rank: int) -> list[int]:
        """Return the processes of one node."""
        return list(range(rank * self.devices, (rank + 1) * self.devices))
