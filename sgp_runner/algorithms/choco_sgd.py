"""CHOCO-SGD (Koloskova et al. 2019, 2020): gossip of coded differences from public copies.

    x_half = x - d;  q = Q(x_half - x_hat);  x_hat <- x_hat + q  (on both sides)
    x = x_half + gamma sum_j w_ij (x_hat_j - x_hat_i)

Both released implementations mix with the copies of the previous step and send afterwards, so the
exchange overlaps the next gradient (``layout=released``). With ``codec=none`` and ``gamma = 1``,
the paper's layout is D-PSGD in adapt-then-combine order, and the released layout is D-PSGD in the
order of its paper. For any codec, gossip leaves the mean of ``x`` unchanged. All copies start at
the common initial model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.coder import Coder
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import verify_symmetric
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ChocoSGD(Algorithm):
    """Gossip of coded differences.

    topology: a symmetric graph, the same in every step
    codec: codes the differences; the coding error is part of the next difference
    gamma: consensus step size; a codec with larger errors needs a smaller step
    layout: order of operations, from the paper or from the released code
    """

    topology: Topology
    codec: Codec
    gamma: float = 0.4
    layout: Literal["paper", "released"] = "paper"
    title: ClassVar[str] = "CHOCO-SGD"
    source: ClassVar[str] = "koloskova2019"

    def __post_init__(self) -> None:
        check_range("(0, 1]", "algo", self, "gamma")

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify_symmetric(self.topology, nodes, self.title, weighted=False)
        if self.phases(nodes) != [(0.0, 1)]:
            raise ConfigError(
                "algo.topology", f"{self.title} needs the same graph in every step: use ring."
            )

    async def run(self, worker: Worker) -> None:
        x, coder = worker.params, Coder(worker, self.codec)
        estimate = worker.state("x_hat", x.clone)
        mixed = worker.state("mixed_x_hat", x.clone)  # sum_j w_ij x_hat_j
        for k in worker.steps():
            await worker.descend()
            if self.layout == "paper":
                await self.send(coder, k, x - estimate, estimate, mixed)
                await self.receive(coder, k, mixed)
            elif k > 0:
                await self.receive(coder, k - 1, mixed)
            x.add_(mixed - estimate, alpha=self.gamma)
            if self.layout == "released" and not worker.done:
                await self.send(coder, k, x - estimate, estimate, mixed)

    async def send(
        self, coder: Coder, k: int, change: Tensor, estimate: Tensor, mixed: Tensor
    ) -> None:
        """Encode the change of this node's copy, send it to all peers and apply it to the copy."""
        worker, message = coder.worker, await coder.encode(change, k)
        peers = self.topology.out_peers(worker.rank, worker.size, k)
        for j in peers:
            worker.comm.send(j, message)
        q = await coder.decode(message, worker.rank, k)
        estimate += q
        mixed.add_(q, alpha=1 / (len(peers) + 1))

    async def receive(self, coder: Coder, k: int, mixed: Tensor) -> None:
        """Receive the neighbours' changes of step ``k``; add them to the weighted sum ``mixed``."""
        worker = coder.worker
        peers = self.topology.in_peers(worker.rank, worker.size, k)
        for j in peers:
            q = await coder.decode(await worker.comm.recv(j), j, k)
            mixed.add_(q, alpha=1 / (len(peers) + 1))
