"""NoLoCo (Kolehmainen et al. 2025): outer steps with gossip in small groups, without all-reduces.

Every ``period`` inner steps, with outer parameters ``phi`` on each worker, and means over the
worker's group (a random pair by default):

    m <- momentum m + lr mean(x - phi) - gamma (phi - mean phi)
    phi <- phi + m;  x <- phi

The paper writes alpha for ``momentum`` and beta for ``lr``. Eq. 2 of the paper has
``- lr mean(x - phi)``, which is a sign error: Eq. 32 and the authors' code have the sign above. A
worker sends ``phi`` before its inner steps, so this message overlaps them; workers only wait for
``x - phi``. There is no average at the end: the workers are an ensemble. On a complete graph all
``phi`` stay equal, and the algorithm is DiLoCo with heavy-ball momentum.

With zero gradients, random pairs and many workers, the spread of the ``phi`` contracts for
``0 < gamma < 2 (1 - momentum^2)``. The paper's condition for pairs,
``momentum < gamma < sqrt(2 + momentum^2)``, is neither necessary nor sufficient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.outer import check_outer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import verify_symmetric
from sgp_runner.utils.errors import ConfigError

PHI, DELTA = 0, 1  # tags


@dataclass(frozen=True)
class NoLoCo(Algorithm):
    """Local steps and outer steps that gossip with a random partner.

    topology: a symmetric graph that defines the groups of each exchange, all of the same size
    period: inner steps between exchanges
    lr: outer learning rate, beta in the paper
    momentum: outer momentum, alpha in the paper
    gamma: pull towards the mean of the group's outer parameters
    """

    topology: Topology
    period: int = 50
    lr: float = 0.7
    momentum: float = 0.5
    gamma: float = 0.7
    title: ClassVar[str] = "NoLoCo"
    source: ClassVar[str] = "kolehmainen2025"

    def __post_init__(self) -> None:
        check_outer(self)
        most = 2 * (1 - self.momentum**2)
        if not 0 < self.gamma < most:
            raise ConfigError(
                "algo.gamma",
                f"{self.gamma} must be between 0 and {most:.4g}, 2 (1 - algo.momentum ** 2), "
                "or the workers drift apart.",
            )

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify_symmetric(self.topology, nodes, self.title, weighted=False)
        graph = self.topology.at(0.0)
        sizes = {len(graph.out_peers(rank, nodes, 0)) for rank in range(nodes)}
        if len(sizes) > 1:
            raise ConfigError(
                "nodes",
                f"{nodes} nodes cannot be divided into groups of equal size: use {nodes + 1}.",
            )

    def group(self, worker: Worker, exchange: int) -> tuple[int, ...]:
        """Return the partners of this worker in ``exchange``."""
        return self.topology.at(0.0).out_peers(worker.rank, worker.size, exchange)

    async def run(self, worker: Worker) -> None:
        x = worker.params
        phi = worker.state("phi", x.clone)
        m = worker.state("outer_momentum", lambda: x.new_zeros(x.shape))
        for k in worker.steps():
            exchange, inner = divmod(k, self.period)
            group = self.group(worker, exchange)
            if inner == 0:
                for j in group:
                    worker.comm.send(j, phi.clone(), PHI)
            await worker.descend()
            if inner == self.period - 1 or worker.done:
                mean_phi, mean_delta = phi.clone(), x - phi
                for j in group:
                    worker.comm.send(j, x - phi, DELTA)
                for j in group:
                    mean_phi += await worker.comm.recv(j, PHI)
                    mean_delta += await worker.comm.recv(j, DELTA)
                size = len(group) + 1
                m.mul_(self.momentum).add_(mean_delta, alpha=self.lr / size)
                m.sub_(phi - mean_phi / size, alpha=self.gamma)
                phi += m
                x.copy_(phi)
