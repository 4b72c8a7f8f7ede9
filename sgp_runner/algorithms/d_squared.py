"""D-squared (Tang et al. 2018): gossip with a correction for data heterogeneity between nodes.

    x_new = W (x - lr [(x_old - x) / lr_old + g - g_old]),  at first W (x - lr g)

This is the authors' form for a changing learning rate. With a constant learning rate it equals the
paper's ``W (2 x - x_old - lr (g - g_old))``. A step moves the mean model by exactly the mean
gradient times ``-lr``. ``g`` is the direction of the local optimizer, which is the gradient for SGD
without momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.gossip import gossip
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import smallest_eigenvalue, verify_symmetric
from sgp_runner.utils.errors import ConfigError


@dataclass(frozen=True)
class DSquared(Algorithm):
    """Gossip with a correction for the previous step's drift.

    topology: a symmetric graph, the same in every step
    lazy: true: mix with (W + I) / 2; false: with W, whose smallest eigenvalue must be above -1/3
    """

    topology: Topology
    lazy: bool = True
    title: ClassVar[str] = "D²"
    source: ClassVar[str] = "tang2018"
    sgd_defaults: ClassVar[Mapping[str, float]] = {"momentum": 0.0}

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify_symmetric(self.topology, nodes, self.title)
        if self.phases(nodes) != [(0.0, 1)]:
            raise ConfigError(
                "algo.topology", f"{self.title} needs the same graph in every step: use ring."
            )
        smallest = smallest_eigenvalue(self.topology, nodes)
        if not self.lazy and smallest < -1 / 3 + 1e-9:
            raise ConfigError(
                "algo.lazy",
                f"{self.title} diverges if an eigenvalue of the mixing matrix is at most -1/3, "
                f"and the smallest is {smallest:.3g}: use algo.lazy=true, or another graph.",
            )

    async def run(self, worker: Worker) -> None:
        x = worker.params
        # (x_old - x) / lr_old - g_old: this node's change by gossip in the last step, over -lr
        drift = worker.state("drift", lambda: x.new_zeros(x.shape))
        for k in worker.steps():
            before = x.clone()
            d, lr = worker.update(await worker.grad()), worker.lr
            x.sub_(d).sub_(drift, alpha=lr)
            mixed = x.clone()
            await gossip(worker, self.topology, k, mixed)
            x.lerp_(mixed, 0.5 if self.lazy else 1.0)
            if lr > 0:
                drift.copy_(before - x - d).div_(lr)
