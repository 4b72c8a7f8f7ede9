"""AD-PSGD, asynchronous decentralised SGD (Lian et al. 2018, Alg. 1): no barrier.

Odd ranks are active: they start averages. Even ranks are passive: they only answer, so no cycle of
waits can form. A gradient is computed at a snapshot and then applied to the current parameters.

An average is atomic on both workers. The passive worker averages as soon as a message arrives. The
active worker may have applied a gradient since it sent its value ``s``. Therefore it adds
``(reply - s) / 2`` to its current parameters. The result is the same as averaging first and
applying the gradient afterwards, and the sum of all parameters is preserved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Topology
from sgp_runner.topology.verify import verify


@dataclass(frozen=True)
class ADPSGD(Algorithm):
    """Asynchronous gradients and pairwise averages.

    topology: every edge joins an odd and an even rank
    averages_per_gradient: number of averages per gradient, counted over all workers; 1 in Alg. 1.
        Each active worker starts a fixed number of averages while it computes a gradient, so the
        ratio holds for equally fast workers. 0.5 is the ratio of the authors' bipartite
        implementation: half of the workers are active, with one average per gradient
    """

    topology: Topology
    averages_per_gradient: float = 1.0
    title: ClassVar[str] = "AD-PSGD"
    source: ClassVar[str] = "lian2018"
    asynchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("positive", "algo", self, "averages_per_gradient")

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify(self.topology, nodes, "odd with even", self.title)

    async def run(self, worker: Worker) -> None:
        x = worker.params
        active = worker.rank % 2 == 1
        if not active:
            answering = worker.spawn(self.answer(worker))
        for _ in worker.steps():
            averaging = worker.spawn(self.average(worker)) if active else None
            x -= worker.update(await worker.grad(x.clone()))
            if averaging is not None:
                await averaging
        if not active:
            await answering
        else:
            end_averages(worker)

    async def average(self, worker: Worker) -> None:
        x = worker.params
        for t in due_averages(worker, self.averages_per_gradient):
            j = partner(self.topology.at(worker.epoch), worker.rank, worker.size, t)
            sent = x.clone()
            worker.comm.send(j, sent)
            x.add_(await worker.comm.recv(j) - sent, alpha=0.5)

    async def answer(self, worker: Worker) -> None:
        x = worker.params
        while averages_may_follow(worker):
            i, theirs = await worker.comm.recv_any()
            if theirs.numel() == 0:
                count_goodbye(worker)
            else:
                worker.comm.send(i, x.clone())
                x.lerp_(theirs, 0.5)


def due_averages(worker: Worker, per_gradient: float) -> Iterator[int]:
    """Yield the indices of the averages that an active worker starts during its next gradient.

    per_gradient: averages per gradient, counted over all workers
    """
    gradients = worker.increment("gradients") + 1
    due = gradients * per_gradient * worker.size / (worker.size // 2)
    while worker.counter("averages") < due:
        yield worker.increment("averages")


def partner(topology: Topology, rank: int, size: int, t: int) -> int:
    """Return the partner of an active worker in its ``t``-th average."""
    peers = topology.out_peers(rank, size, t)
    return peers[t % len(peers)]


def end_averages(worker: Worker) -> None:
    """Send rank 0 a goodbye, an empty message: this active worker starts no more averages."""
    worker.comm.send(0, worker.params.new_empty(0))


def averages_may_follow(worker: Worker) -> bool:
    """Return whether an active worker may still start an average with this passive worker.

    Rank 0 waits for the goodbyes of all active workers, other ranks only for rank 0's:
    goodbyes from all active to all passive workers would grow with the square of the workers.
    """
    return worker.counter("goodbyes") < (1 if worker.rank else worker.size // 2)


def count_goodbye(worker: Worker) -> None:
    """Count a goodbye that a passive worker received; rank 0 forwards the last one."""
    worker.increment("goodbyes")
    if not worker.rank and not averages_may_follow(worker):
        for j in range(2, worker.size, 2):
            worker.comm.send(j, worker.params.new_empty(0))
