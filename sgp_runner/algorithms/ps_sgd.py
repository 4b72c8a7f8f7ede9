"""PS-SGD: synchronous SGD through a parameter server ("PS-Sync" in Li et al. 2018).

The server is an additional process; its rank follows the workers' ranks. It sums the gradients in
rank order, takes the step and sends the parameters back, so its network link carries all traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class PSSGD(Algorithm):
    """Synchronous steps on a parameter server."""

    title: ClassVar[str] = "PS-SGD"
    source: ClassVar[str] = "li2018"
    servers: ClassVar[int] = 1

    async def run(self, worker: Worker) -> None:
        await (self.serve(worker) if worker.is_server else push_and_pull(worker))

    async def serve(self, worker: Worker) -> None:
        x = worker.params
        for _ in worker.steps():
            g = x.new_zeros(x.shape)
            for i in range(worker.size):
                g += await worker.comm.recv(i)
            x -= worker.update(g.div_(worker.size))
            message = x.clone()
            for i in range(worker.size):
                worker.comm.send(i, message)


async def push_and_pull(worker: Worker) -> None:
    """Send each gradient to the server and continue from the parameters in its reply."""
    server = worker.size
    for _ in worker.steps():
        worker.comm.send(server, await worker.grad())
        worker.params.copy_(await worker.comm.recv(server))
