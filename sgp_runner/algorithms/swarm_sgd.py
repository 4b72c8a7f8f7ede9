"""SwarmSGD (Nadiradze et al. 2021): local steps and asynchronous averages of random pairs.

After H of its own steps a worker i averages with a random neighbour j, which may be in the middle
of its own local steps:

    blocking:  x_i, x_j <- (x_i + x_j) / 2
    else:      exchange the copies s of before the H steps;  x_i <- x_i + (s_j - s_i) / 2, and so j

Only worker i waits. Its neighbour replies immediately, so no cycle of waits can form, and the sum
of all parameters is preserved. If the graph of a period consists of disjoint pairs, the smaller
rank of each pair starts the average. With H = 1 and equally fast workers, non-blocking averages on
random matchings are D-PSGD. The first released code (PopSGD) lets only the worker that starts an
average move, which does not preserve the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log
from random import Random
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import verify_symmetric
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import Tensor


REQUEST, REPLY = 0, 1  # tags


@dataclass(frozen=True)
class SwarmSGD(Algorithm):
    """Local steps and pairwise averages with random neighbours.

    topology: a symmetric graph, from which a worker draws one neighbour at a time
    period: steps of a worker between the averages that it starts, H
    steps: fixed: H steps; geometric: a random number with mean H
    blocking: true: average the parameters after the H steps; false: exchange the copies from before
        these steps during them
    seed: seed of the draws, independent of the run's seed
    """

    topology: Topology
    period: int = 2
    steps: Literal["fixed", "geometric"] = "fixed"
    blocking: bool = False
    seed: int = 0
    title: ClassVar[str] = "SwarmSGD"
    source: ClassVar[str] = "nadiradze2021"
    asynchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "period")

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify_symmetric(self.topology, nodes, self.title)

    def partner(self, rank: int, size: int, t: int) -> int | None:
        """Return the node with which ``rank`` starts its ``t``-th average, if any."""
        peers = self.topology.at(0.0).out_peers(rank, size, t)
        is_pair = len(peers) == 1 and self.topology.at(0.0).out_peers(peers[0], size, t) == (rank,)
        if not peers or (is_pair and rank > peers[0]):
            return None
        return Random(f"{self.seed}/{rank}/{t}/partner").choice(peers)

    def local_steps(self, rank: int, t: int) -> int:
        """Return the number of steps of ``rank`` before its ``t``-th average."""
        if self.steps == "fixed" or self.period == 1:
            return self.period
        u = Random(f"{self.seed}/{rank}/{t}/steps").random()
        return ceil(log(1 - u) / log(1 - 1 / self.period)) or 1

    async def run(self, worker: Worker) -> None:
        x = worker.params
        s = worker.state("copy", x.clone)
        answering = worker.spawn(self.answer(worker, s))
        for _ in worker.steps():
            if not worker.increment("inner"):
                s.copy_(x)
                if not self.blocking:
                    self.request(worker)
            x -= worker.update(await worker.grad(x.clone()))
            if worker.counter("inner") == self.local_steps(worker.rank, worker.counter("averages")):
                await self.average(worker)
        if worker.counter("inner"):
            await self.average(worker)
        if worker.rank:
            worker.comm.send(0, x.new_empty(0), REQUEST)  # empty: no more averages of this worker
        await answering
        for j in range(1, 1 if worker.rank else worker.size):
            worker.comm.send(j, x.new_empty(0), REQUEST)  # no more averages of any worker

    def request(self, worker: Worker) -> None:
        """Send the current parameters to the partner of the next average, if any."""
        j = self.partner(worker.rank, worker.size, worker.counter("averages"))
        if j is not None:
            worker.state["sent"] = worker.params.clone()
            worker.comm.send(j, worker.state["sent"], REQUEST)

    async def average(self, worker: Worker) -> None:
        if self.blocking:
            self.request(worker)
        j = self.partner(worker.rank, worker.size, worker.increment("averages"))
        if j is not None:
            reply = await worker.comm.recv(j, REPLY)
            worker.params.add_(reply - worker.state.pop("sent"), alpha=0.5)
        worker.state["inner"] = 0

    async def answer(self, worker: Worker, s: Tensor) -> None:
        x = worker.params
        while worker.counter("goodbyes") < (1 if worker.rank else worker.size - 1):
            i, theirs = await worker.comm.recv_any(REQUEST)
            if theirs.numel() == 0:
                worker.increment("goodbyes")
                continue
            mine = x if self.blocking else s
            worker.comm.send(i, mine.clone(), REPLY)
            change = (theirs - mine).mul_(0.5)
            x += change
            if not self.blocking:
                s += change
