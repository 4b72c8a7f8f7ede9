"""tau-OSGP, Overlap SGP (Assran et al. 2019, Alg. 2): messages travel during ``tau`` gradients.

A message sent in step ``k`` is added before the gradient of step ``k + 1 + tau`` at the latest, so
``tau = 0`` is SGP. Mass in flight makes ``w != 1`` even on regular graphs, so the model must be
de-biased.

Differences from the listing of Alg. 2:

* every step waits for the messages that are ``tau`` steps late. The listing waits when a counter
  reaches ``tau``, then resets the counter. Both rules give the same result if no message is late;
* messages are sent every ``interval`` steps, 1 by default, instead of every ``tau`` steps;
* a worker adds a message from a peer that is ahead only after the worker has reached the step of
  the message. The listing adds every message that has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.osgp_released import run_released
from sgp_runner.core.gossip import split
from sgp_runner.core.late_messages import LateMessages
from sgp_runner.core.push_sum import descend, to_numerator
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase, Topology
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class OSGP(Algorithm):
    """SGP with messages that may arrive late.

    topology: any graph
    tau: number of steps that a message may be late before the worker waits for it; 0 is SGP (with
        layout=released: the authors' 1-OSGP)
    interval: steps between sends; the paper's listing uses tau for both
    layout: order of operations, from the paper or from a version of the released code
        (osgp_released)
    push_sum_weight: true: the model is divided by the push-sum weight; false: it is not, which is
        the paper's biased ablation
    """

    topology: Topology
    tau: int = 1
    interval: int = 1
    layout: Literal["paper", "released", "released_2019"] = "paper"
    push_sum_weight: bool = True
    title: ClassVar[str] = "OSGP"
    source: ClassVar[str] = "assran2019"
    graph: ClassVar[Literal["any"]] = "any"

    def __post_init__(self) -> None:
        check_least(0, "algo", self, "tau")
        check_least(1, "algo", self, "interval")

    def phases(self, size: int) -> list[Phase]:
        return [(epoch, self.interval * steps) for epoch, steps in self.topology.phases(size)]

    async def run(self, worker: Worker) -> None:
        if self.layout != "paper":
            released = self.topology, self.tau, self.interval, self.push_sum_weight
            return await run_released(worker, *released, self.layout == "released_2019")
        x = worker.push_sum  # [D + 1]: z (worker.params) at rest, x in between; w last
        late = LateMessages(worker, x, self.push_sum_weight)
        for k in worker.steps():
            d = await worker.local_step()  # at z, while messages travel
            if k % self.interval:
                descend(x, d)  # x <- z w - d
            else:
                peers = worker.peers(self.topology, k // self.interval)
                for j, share in split(worker, peers, x, minus=d):  # x <- own share of z w - d
                    worker.comm.send(j, share)
                late.expect(k, peers.incoming)
            await late.fold(deadline=k - self.tau)
        to_numerator(x)
        await late.fold(deadline=worker.step)
