"""Ringleader ASGD (Maranjyan & Richtárik 2025): asynchronous SGD for workers with unequal data.

A parameter server has, for each worker i, the sum G_i of its gradients and their count b_i. A step
averages the means of all workers, so fast workers do not count more:

    x <- x - U((1/n) sum_i G_i / b_i)

A round has two phases and n steps.

    1. Collect, without a step, until all b_i > 0. Then step, and send x to the last worker.
    2. A gradient of a worker that has not had parameters in this round: add it to G_i, step, send
       x. A gradient of another worker: add it to the sums of the next round.

A worker without new parameters continues from its previous ones. After the n-th step the sums of
the next round become the current ones. No gradient in a step is more than 2n - 2 steps old. Here
the server replies to each gradient, with an empty message if there are no new parameters, so that a
worker never starts at parameters that are about to change. The learning rate follows the number of
gradients that have arrived. With one worker this is SGD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.worker import Worker

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ringleader(Algorithm):
    """Asynchronous steps along the mean of all workers' latest mean gradients."""

    title: ClassVar[str] = "Ringleader ASGD"
    source: ClassVar[str] = "maranjyan2025b"
    asynchronous: ClassVar[bool] = True
    servers: ClassVar[int] = 1
    sgd_defaults: ClassVar[Mapping[str, float]] = {"momentum": 0.0}

    async def run(self, worker: Worker) -> None:
        await (self.serve(worker) if worker.is_server else self.work(worker))

    async def work(self, worker: Worker) -> None:
        for _ in worker.steps():
            worker.comm.send(worker.size, await worker.grad())
            answer = await worker.comm.recv(worker.size)
            if answer.numel():
                worker.params.copy_(answer)

    async def serve(self, server: Worker) -> None:
        import torch

        x = server.params
        # [D + 1]: sum and count of each worker's gradients, of this and of the next round.
        now: dict[int, Tensor] = server.state("now", dict)
        later: dict[int, Tensor] = server.state("later", dict)
        served: list[int] = server.state("served", list)  # workers that got x in this round
        sent = server.state("sent", lambda: [0] * server.size)  # k of each worker's parameters
        for _ in server.steps():  # one gradient each
            i, g = await server.comm.recv_any()
            server.log("staleness", server.counter("k") - sent[i])
            sums = later if i in served else now
            counted = torch.cat([g, g.new_full((1,), 1)])
            sums[i] = sums[i] + counted if i in sums else counted
            if sums is later or len(now) < server.size:
                server.comm.send(i, x.new_empty(0))
                continue
            means = [total[:-1] / total[-1] for total in now.values()]
            x -= server.update(sum(means, x.new_zeros(x.shape)) / server.size)
            sent[i] = server.increment("k") + 1
            server.comm.send(i, x.clone())
            served.append(i)
            if len(served) == server.size:
                now.clear()
                now.update(later)
                later.clear()
                served.clear()
