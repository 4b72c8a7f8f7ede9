"""AccumAdam (Wang et al. 2024, Decent-DP): gossip and Adam, with moments updated every few steps.

In step t = 1, 2, ... of node i, with A steps per update of the moments and k = ceil(t / A):

    a <- a + g / A;  m' = beta1 m + (1 - beta1) g;  v' = beta2 v + (1 - beta2) g^2
    x_i <- sum_j W_ij x_j - lr m' / (1 - beta1^k) / (sqrt(v' / (1 - beta2^k)) + eps)
    A divides t:  m <- beta1 m + (1 - beta1) a;  v <- beta2 v + (1 - beta2) a^2;  a <- 0

The gradient is taken at x_i before mixing, so the exchange overlaps its computation. With A = 1
this is D-PSGD with Adam. AdamW decays by a share of x_i before mixing, whereas the authors' code
decays by a share of x_i after mixing. The authors clip each bucket of a gradient separately; here
the optimizer clips the whole gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.gossip import shares
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.optim.adam import adam_of
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import verify_symmetric
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class AccumAdam(Algorithm):
    """Gossip during the gradient computation, and Adam with accumulated moments.

    topology: a symmetric graph
    accumulate: steps per update of the moments, A; 8 for GPT-2 and ResNet-50, 4 for the Transformer
        in the paper
    """

    topology: Topology
    accumulate: int = 8
    title: ClassVar[str] = "AccumAdam"
    source: ClassVar[str] = "wang2024"
    needs_optim: ClassVar[str | None] = "adam"
    graph: ClassVar[Literal["symmetric"]] = "symmetric"

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "accumulate")

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify_symmetric(self.topology, nodes, self.title)
        adam_of(optim, self.title)

    async def run(self, worker: Worker) -> None:
        adam, x, shapes = adam_of(worker.optim, self.title), worker.params, worker.shapes
        m, v, updates = (worker.buffers[name] for name in ("mean", "square", "steps"))
        a = worker.state("accumulated", lambda: x.new_zeros(x.shape))
        for k in worker.steps():
            peers = worker.peers(self.topology, k)
            own_share, outgoing = shares(worker, peers, x)
            for j, share in outgoing:
                worker.comm.send(j, share)
            g = adam.prepared(await worker.grad(), x, shapes)  # at x, while messages travel
            a.add_(g, alpha=1 / self.accumulate)
            of_m, of_v = (1 - beta ** (updates + 1) for beta in (adam.beta1, adam.beta2))
            root = v.mul(adam.beta2).addcmul_(g, g, value=1 - adam.beta2).div_(of_v).sqrt_()
            d = m.lerp(g, 1 - adam.beta1).div_(of_m).div_(root.add_(adam.eps))
            d = adam.decayed(d, x, shapes).mul_(worker.lr)
            if (k + 1) % self.accumulate == 0:
                m.lerp_(a, 1 - adam.beta1)
                v.mul_(adam.beta2).addcmul_(a, a, value=1 - adam.beta2)
                updates += 1
                a.zero_()
            x.copy_(own_share).sub_(d)
            for j in peers.incoming:
                x += await worker.comm.recv(j)
