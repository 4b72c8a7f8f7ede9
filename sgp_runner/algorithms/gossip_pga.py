"""Gossip-PGA (Chen et al. 2021): gossip with an exact average in every ``period``-th step.

    x_i <- sum_j W_ij (x_j - d_j),  or  x_i <- mean_j (x_j - d_j)  if period divides k + 1

With a period of 1 this is AR-SGD with averaged parameters; with a period longer than the run it is
D-PSGD in adapt-then-combine order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.gossip import gossip
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase, Topology
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class GossipPGA(Algorithm):
    """A local step, then gossip or an exact average.

    topology: a symmetric graph
    period: steps between exact averages
    """

    topology: Topology
    period: int = 48
    title: ClassVar[str] = "Gossip-PGA"
    source: ClassVar[str] = "chen2021"
    graph: ClassVar[Literal["symmetric"]] = "symmetric"

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "period")

    def phases(self, size: int) -> list[Phase]:
        return [(epoch, lcm(self.period, steps)) for epoch, steps in self.topology.phases(size)]

    async def run(self, worker: Worker) -> None:
        x = worker.params
        for k in worker.steps():
            await worker.descend()
            if (k + 1) % self.period == 0:
                x.copy_(await worker.comm.all_reduce(x.clone()))
            else:
                await gossip(worker, self.topology, k, x)
