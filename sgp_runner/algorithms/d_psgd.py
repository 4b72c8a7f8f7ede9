"""D-PSGD (Lian et al. 2017, Alg. 1): a neighbourhood average and a local step in every step.

``combine_while_computing`` is the paper's order, ``x_i <- sum_j W_ij x_j - d_i``. The gradient is
taken at the parameters before mixing, so the exchange overlaps its computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.gossip import gossip, shares
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology


@dataclass(frozen=True)
class DPSGD(Algorithm):
    """A local step and a weighted average with the neighbours.

    topology: a symmetric graph; uniform weights must make its mixing matrix doubly stochastic
    order: combine_while_computing, as in the paper, or adapt_then_combine: local step first, then
        exchange
    """

    topology: Topology
    order: Literal["combine_while_computing", "adapt_then_combine"] = "combine_while_computing"
    title: ClassVar[str] = "D-PSGD"
    source: ClassVar[str] = "lian2017"
    graph: ClassVar[Literal["symmetric"]] = "symmetric"

    async def run(self, worker: Worker) -> None:
        x = worker.params
        for k in worker.steps():
            if self.order == "adapt_then_combine":
                await worker.descend()
                await gossip(worker, self.topology, k, x)
                continue
            peers = worker.peers(self.topology, k)
            own_share, outgoing = shares(worker, peers, x)
            for j, share in outgoing:
                worker.comm.send(j, share)
            d = worker.update(await worker.grad())  # at x, while messages travel
            x.copy_(own_share).sub_(d)
            del d  # free its memory before waiting
            for j in peers.incoming:
                x += await worker.comm.recv(j)
