"""Rennala SGD (Tyurin & Richtárik 2023): steps on the first gradients to arrive from any worker.

A parameter server adds up gradients that were taken at its current parameters x, possibly several
from one worker. Gradients taken at earlier parameters are dropped. After ``B = batch`` gradients:

    x <- x - U(mean of the B gradients)
    all workers abandon their gradients and start again at the new x

The server replies to each gradient, with an empty message if there are no new parameters, so that
no worker sends gradients faster than the server processes them. Parameters and gradients carry the
number k of the server's steps. The learning rate follows the number of gradients that have arrived.
B = 1 is SGD. With equally fast workers and B = n, this is PS-SGD.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ringmaster import (
    ANSWER,
    RESTART,
    release,
    send_parameters,
    work,
)
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class Rennala(Algorithm):
    """Steps on the mean of the first gradients that arrive.

    batch: gradients per server step, B; null: the number of nodes
    """

    batch: int | None = None
    title: ClassVar[str] = "Rennala SGD"
    source: ClassVar[str] = "tyurin2023"
    asynchronous: ClassVar[bool] = True
    servers: ClassVar[int] = 1
    sgd_defaults: ClassVar[Mapping[str, float]] = {"momentum": 0.0}

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "batch")

    async def run(self, worker: Worker) -> None:
        await (self.serve(worker) if worker.is_server else work(worker, restarts=True))

    async def serve(self, server: Worker) -> None:
        x, batch = server.params, self.batch or server.size
        total = server.state("sum", lambda: x.new_zeros(x.shape))
        for _ in server.steps():  # one gradient each
            i, message = await server.comm.recv_any()
            delay = server.counter("k") - int(message[-1])
            server.log("staleness", delay)
            if delay == 0:
                if not server.increment("count"):
                    total.zero_()
                total += message[:-1]
            if delay or server.counter("count") < batch:
                server.comm.send(i, x.new_empty(0), ANSWER)
                continue
            x -= server.update(total / batch)
            server.state["count"] = 0
            server.increment("k")
            send_parameters(server, [i], ANSWER)
            send_parameters(server, [j for j in range(server.size) if j != i], RESTART)
        release(server)
