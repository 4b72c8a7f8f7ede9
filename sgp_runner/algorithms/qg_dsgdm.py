"""QG-DSGDm (Lin et al. 2021): momentum from the model's change in a step, including gossip.

    x_half = x - lr (g + beta m),  m = beta m_hat + g        (Nesterov; else x - lr m)
    x_new = W x_half
    m_hat <- mu m_hat + (1 - mu) (x - x_new) / lr

Each step starts its local momentum from ``m_hat`` instead of the previous local momentum, so the
momenta of nodes with different data do not drift apart. ``beta``, Nesterov and weight decay are
settings of the optimizer. With ``beta = 0`` this is D-PSGD in adapt-then-combine order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.gossip import gossip
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import verify_symmetric
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class QGDSGDm(Algorithm):
    """Gossip with quasi-global momentum.

    topology: a symmetric graph
    mu: decay of the quasi-global momentum; null: optim.momentum, as in the paper
    """

    topology: Topology
    mu: float | None = None
    title: ClassVar[str] = "QG-DSGDm"
    source: ClassVar[str] = "lin2021"

    def __post_init__(self) -> None:
        if self.mu is not None and not 0 <= self.mu < 1:
            raise ConfigError("algo.mu", f"{self.mu} must be in [0, 1), or null.")

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify_symmetric(self.topology, nodes, self.title)
        if optim.name != "sgd":
            what = f"{self.title} replaces the momentum of SGD"
            raise ConfigError("optim", f"{what}: use optim=sgd, not {optim.name}.")

    async def run(self, worker: Worker) -> None:
        x = worker.params
        mu = worker.optim.momentum if self.mu is None else self.mu
        m_hat = worker.state("quasi_global_momentum", lambda: x.new_zeros(x.shape))
        for k in worker.steps():
            before = x.clone()
            replace(worker.buffers, m_hat)
            await worker.descend()
            await gossip(worker, self.topology, k, x)
            if worker.lr > 0:
                m_hat.mul_(mu).add_(before - x, alpha=(1 - mu) / worker.lr)


def replace(buffers: Mapping[str, Tensor], momentum: Tensor) -> None:
    """Copy ``momentum`` [D] to the optimizer's buffer, or to its buffers, one per tensor."""
    begin = 0
    for buffer in buffers.values():
        buffer.copy_(momentum[begin : begin + buffer.numel()].view_as(buffer))
        begin += buffer.numel()
