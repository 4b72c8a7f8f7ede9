"""Ringmaster ASGD (Maranjyan et al. 2025): asynchronous SGD that drops gradients with long delays.

A parameter server counts its steps, k, and sends k with the parameters; a worker returns it with
the gradient. For a gradient that is ``delay = k - (k of its parameters)`` steps late:

    delay < R:  x <- x - U(g);  k <- k + 1
    else:       drop the gradient
    answer x and k in both cases

With ``stop``, as in the authors' code, a worker whose delay has reached R is notified immediately:
it abandons its gradient and restarts at x. The optimizer's step U is the server's, with its
momentum. The learning rate follows the number of gradients that have arrived, and is not scaled by
the number of workers. R = 1 is SGD, and R = infinity is ASGD.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import Tensor


ANSWER, RESTART = 0, 1  # tags


@dataclass(frozen=True)
class Ringmaster(Algorithm):
    """Asynchronous SGD with a limit on the delay of a gradient.

    limit: smallest delay of a dropped gradient in server steps, R; null: the number of nodes
    stop: whether a worker abandons a gradient as soon as its delay reaches the limit
    """

    limit: int | None = None
    stop: bool = False
    title: ClassVar[str] = "Ringmaster ASGD"
    source: ClassVar[str] = "maranjyan2025"
    asynchronous: ClassVar[bool] = True
    servers: ClassVar[int] = 1
    sgd_defaults: ClassVar[Mapping[str, float]] = {"momentum": 0.0}

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "limit")

    async def run(self, worker: Worker) -> None:
        await (self.serve(worker) if worker.is_server else work(worker, self.stop))

    async def serve(self, server: Worker) -> None:
        x, limit = server.params, self.limit or server.size
        sent = server.state("sent", lambda: [0] * server.size)  # k of each worker's parameters
        for _ in server.steps():  # one gradient each
            i, message = await server.comm.recv_any()
            delay = server.counter("k") - int(message[-1])
            server.log("staleness", delay)
            if delay < limit:
                x -= server.update(message[:-1].clone())
                server.increment("k")
            k = server.counter("k")
            late = [j for j in range(server.size) if self.stop and j != i and k - sent[j] >= limit]
            for tag, workers in ((ANSWER, [i]), (RESTART, late)):
                send_parameters(server, workers, tag)
                for j in workers:
                    sent[j] = k
        if self.stop:
            release(server)


async def work(worker: Worker, restarts: bool) -> None:
    """Send gradients and adopt the replies; ``restarts``: whether the server requests restarts."""
    restarting = worker.spawn(restart(worker)) if restarts else None
    for _ in worker.steps():
        await push(worker)
        answer = await worker.comm.recv(worker.size, ANSWER)
        if answer.numel():
            adopt(worker, answer)
    if restarting is not None:
        await restarting


async def push(worker: Worker) -> None:
    """Send the server a gradient, with the number k of its parameters as the last element.

    An abandoned gradient is computed again, at the parameters of that time.
    """
    g: Tensor | None = None
    while g is None:
        g = await worker.grad(worker.params.clone())
    worker.comm.send(worker.size, numbered(worker, g))


async def restart(worker: Worker) -> None:
    """Abandon the gradient in progress whenever the server requests a restart."""
    while (message := await worker.comm.recv(worker.size, RESTART)).numel():
        adopt(worker, message)
        worker.abandon()


def adopt(worker: Worker, message: Tensor) -> None:
    """Continue from the parameters [D] and their number k in ``message``, unless they are older."""
    if (k := int(message[-1])) >= worker.counter("k"):
        worker.params.copy_(message[:-1])
        worker.state["k"] = k


def numbered(worker: Worker, vector: Tensor) -> Tensor:
    """Return ``vector`` [D] with this worker's number k as the last element."""
    import torch

    return torch.cat([vector, vector.new_full((1,), worker.counter("k"))])


def send_parameters(server: Worker, workers: Iterable[int], tag: int) -> None:
    """Send the server's parameters and their number k to ``workers``."""
    message = numbered(server, server.params)
    for i in workers:
        server.comm.send(i, message, tag)


def release(server: Worker) -> None:
    """End `restart` on all workers."""
    for i in range(server.size):
        server.comm.send(i, server.params.new_empty(0), RESTART)
