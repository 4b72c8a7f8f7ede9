"""What goes wrong in a simulated run: slow nodes and slow links. Deterministic, from data in ``configs/faults``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sgp_runner.cluster import check_ranks
from sgp_runner.errors import ConfigError


@dataclass(frozen=True)
class Faults:
    """slow_nodes: by rank, how many times longer a gradient takes. slow_links: by rank, by what the bandwidth is divided."""

    slow_nodes: Mapping[int, float]
    slow_links: Mapping[int, float]

    def __post_init__(self) -> None:
        for key, factors in (("slow_nodes", self.slow_nodes), ("slow_links", self.slow_links)):
            for rank, factor in factors.items():
                if not 1 <= factor < float("inf"):
                    raise ConfigError(f"faults.{key}.{rank}", f"{factor} must be at least 1 and finite.")

    def check(self, nodes: int, servers: int) -> None:
        """A parameter server has a link but computes no gradients."""
        check_ranks("faults.slow_nodes", self.slow_nodes, nodes)
        check_ranks("faults.slow_links", self.slow_links, nodes + servers)

    @property
    def any(self) -> bool:
        return bool(self.slow_nodes or self.slow_links)
