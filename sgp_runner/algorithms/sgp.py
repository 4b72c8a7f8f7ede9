"""SGP, Stochastic Gradient Push (Assran et al. 2019, Alg. 1): a local step, then push-sum.

The state is the numerator ``x`` and the weight ``w``, initially 1; the model is ``z = x / w``. The
columns of the mixing matrix sum to one, so mixing preserves ``sum x`` and ``sum w = n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.gossip import split
from sgp_runner.core.push_sum import to_model
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology


@dataclass(frozen=True)
class SGP(Algorithm):
    """A local step and one round of push-sum.

    topology: any graph; push-sum also averages over directed graphs
    """

    topology: Topology
    title: ClassVar[str] = "SGP"
    source: ClassVar[str] = "assran2019"
    graph: ClassVar[Literal["any"]] = "any"

    async def run(self, worker: Worker) -> None:
        x = worker.push_sum  # [D + 1]: z (worker.params) at rest, x in between; w last
        for k in worker.steps():
            d = await worker.local_step()  # at z
            peers = worker.peers(self.topology, k)
            for j, share in split(worker, peers, x, minus=d):  # x <- own share of z w - d
                worker.comm.send(j, share)
            for j in peers.incoming:
                x += await worker.comm.recv(j)
            to_model(x)
