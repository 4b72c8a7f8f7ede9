"""GASLoC (arXiv:2606.11081, 2026), experimental: outer momentum steps that gossip on a graph.

A worker i takes ``period`` inner steps, from ``theta`` to ``end``. W is the mixing matrix of the
graph, and ``x_prev`` is the previous x, at first the initial parameters. Then:

    x = theta + lr (end - theta)
    extrapolated:  theta <- sum_j W_ij z_j,  z = x + momentum (x - x_prev)
    printed:       theta <- sum_j W_ij x_j + momentum (x - x_prev)

Our only source is a summary with the printed line. On one node both forms are DiLoCo. On a complete
graph only ``extrapolated``, which is our reading, is DiLoCo, as the summary states for the method:
in ``printed`` a worker keeps ``momentum`` times its own difference. The mean of all theta is the
same in both forms if all gradients are the same. A shorter last period ends with an exchange too,
but not with an average, so the workers are an ensemble.

Without gradients, ``extrapolated`` contracts on a fixed graph if and only if all eigenvalues of W
but the first are above ``-1 / (1 + 2 momentum)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.diloco import check_outer
from sgp_runner.core.gossip import gossip
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import smallest_eigenvalue, verify_symmetric
from sgp_runner.utils.errors import ConfigError


@dataclass(frozen=True)
class GASLoC(Algorithm):
    """Experimental: local steps, and outer momentum steps that gossip with neighbours.

    topology: a symmetric graph; one step of it for each exchange
    period: inner steps between exchanges, H
    lr: outer learning rate
    momentum: outer momentum
    form: extrapolated: send the parameters after the momentum step, which is DiLoCo on a complete
        graph; printed: add the momentum step after the exchange, as in our source
    """

    topology: Topology
    period: int = 30
    lr: float = 0.7
    momentum: float = 0.9
    form: Literal["extrapolated", "printed"] = "extrapolated"
    title: ClassVar[str] = "GASLoC"
    source: ClassVar[str] = "cagnasso2026"

    def __post_init__(self) -> None:
        check_outer(self)

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify_symmetric(self.topology, nodes, self.title)
        if self.form == "printed" or self.topology.phases(nodes) != [(0.0, 1)]:
            return
        smallest = smallest_eigenvalue(self.topology, nodes)
        if smallest * (1 + 2 * self.momentum) <= -1 + 1e-9:
            raise ConfigError(
                "algo.momentum",
                f"{self.momentum} must be less than {(-1 / smallest - 1) / 2:.4g} on this graph, "
                "or the workers drift apart: use algo.form=printed, or another graph.",
            )

    async def run(self, worker: Worker) -> None:
        x = worker.params
        theta, x_prev = worker.state("outer", x.clone), worker.state("previous", x.clone)
        for k in worker.steps():
            await worker.descend()
            if (k + 1) % self.period == 0 or worker.done:
                x.sub_(theta).mul_(self.lr).add_(theta)
                difference = x - x_prev
                x_prev.copy_(x)
                if self.form == "extrapolated":
                    x.add_(difference, alpha=self.momentum)
                await gossip(worker, self.topology, k // self.period, x)
                if self.form == "printed":
                    x.add_(difference, alpha=self.momentum)
                theta.copy_(x)
