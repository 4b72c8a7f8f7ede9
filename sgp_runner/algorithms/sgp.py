"""SGP, Stochastic Gradient Push (Assran et al. 2019, Alg. 1): a local step, then push-sum.

State: numerator ``x``, weight ``w = 1``, model ``z = x / w``. The columns of the mixing matrix sum
to one, so mixing keeps ``sum x`` and ``sum w = n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.push_sum import push, to_model
from sgp_runner.topology.verify import verify

if TYPE_CHECKING:
    from sgp_runner.core.optim import Optimizer
    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Phase, Topology


@dataclass(frozen=True)
class SGP(Algorithm):
    """A local step and one round of push-sum.

    topology: any graph; directed ones are what push-sum is for
    """

    topology: Topology
    title: ClassVar[str] = "SGP"

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify(self.topology, nodes, weighted=True)

    def phases(self, size: int) -> list[Phase]:
        return self.topology.phases(size)

    async def run(self, worker: Worker) -> None:
        x = worker.push_sum  # [D + 1]: z (worker.params) at rest, x in between; w last
        for k in worker.steps():
            step = await worker.local_step()  # d, at z
            graph = self.topology.at(worker.epoch)
            push(worker, graph, k, x, step)  # x = z w - d; keeps the own share of x
            for j in graph.in_peers(worker.rank, worker.size, k):
                x += await worker.comm.recv(j)
            to_model(x)
