"""HALoS (Kim et al. 2025): asynchronous DiLoCo with regional servers and a global server.

A worker takes inner steps from ``theta`` of its regional server, sends the server their change and
continues from its current ``theta``, as in Async DiLoCo. The regional server applies each change by
Delayed Nesterov. After K = ``arrivals`` changes, unless an update is in flight:

    send ref - theta to the global server, and continue
    at its reply Theta:  theta <- (1 - alpha) theta + alpha Theta;  ref <- theta

``ref`` is theta at the last reply. The global server applies each update by Delayed Nesterov and
replies with its parameters. Changes that arrive while an update is in flight change theta but are
never sent to the global server, as in the authors' code: ref is set at the reply, and K counts from
there. A run ends, by our definition, with an update of each region.

With one region, instant links, ``global_lr = 1`` and ``global_momentum = 0`` this is Async DiLoCo.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.async_diloco import (
    check_speeds,
    check_workers,
    delayed_nesterov,
    work,
)
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.outer import check_outer
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class HALoS(Algorithm):
    """Local steps, outer steps on regional servers, and their outer steps on a global server.

    regions: number of regions, each of consecutive nodes, of nearly equal sizes
    period: inner steps of the fastest worker between its outer gradients, H
    speeds: speed of each worker, in any unit; slower workers take fewer inner steps; null: equal
        speeds
    lr: outer learning rate of a regional server
    momentum: outer momentum of a regional server
    delay: outer gradients per momentum step of a regional server, N
    arrivals: outer gradients of a region between its updates to the global server, K
    alpha: share of the global parameters when a region merges them with its own
    global_lr: outer learning rate of the global server
    global_momentum: outer momentum of the global server
    global_delay: updates per momentum step of the global server
    """

    regions: int = 4
    period: int = 8
    speeds: tuple[float, ...] | None = None
    lr: float = 3.2
    momentum: float = 0.9
    delay: int = 16
    arrivals: int = 32
    alpha: float = 0.25
    global_lr: float = 0.3
    global_momentum: float = 0.5
    global_delay: int = 2
    title: ClassVar[str] = "HALoS"
    source: ClassVar[str] = "kim2025"
    asynchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_outer(self)
        check_least(1, "algo", self, "regions", "delay", "arrivals", "global_delay")
        check_range("positive", "algo", self, "global_lr")
        check_range("[0, 1)", "algo", self, "global_momentum")
        check_range("[0, 1]", "algo", self, "alpha")
        check_speeds(self.speeds)

    @property
    def servers(self) -> int:
        return self.regions + 1

    def check(self, nodes: int, optim: Optimizer) -> None:
        if self.regions > nodes:
            raise ConfigError(
                "algo.regions", f"{self.regions} regions need at least as many nodes, not {nodes}."
            )
        check_workers(self.title, self.speeds, nodes, optim)

    def region(self, rank: int, size: int) -> int:
        """Return the region of node ``rank``."""
        return rank * self.regions // size

    def inner_steps(self, rank: int) -> int:
        """Return the inner steps of worker ``rank`` between two outer gradients."""
        if self.speeds is None:
            return self.period
        return ceil(self.period * self.speeds[rank] / max(self.speeds) - 1e-9)

    async def run(self, worker: Worker) -> None:
        rank, size = worker.rank, worker.size
        if rank == size + self.regions:
            await self.serve_regions(worker)
        elif worker.is_server:
            await self.serve_workers(worker)
        else:
            server = size + self.region(rank, size)
            await work(worker, server, self.inner_steps(rank))
            worker.comm.send(server, worker.params.new_empty(0))  # empty: no more changes

    async def serve_workers(self, server: Worker) -> None:
        size, above = server.size, server.size + self.regions
        count = sum(size + self.region(i, size) == server.rank for i in range(size))
        for _ in server.steps():  # the inner steps of its workers
            while not server.counter("received") and server.counter("goodbyes") < count:
                await self.receive(server)
            if not server.counter("received"):
                break
            server.state["received"] -= 1
        while server.counter("goodbyes") < count:
            await self.receive(server)
        if server.counter("in_flight"):
            self.merge(server, await server.comm.recv(above))
        if server.counter("unsent"):
            self.send_up(server)
            self.merge(server, await server.comm.recv(above))

    async def receive(self, server: Worker) -> None:
        i, message = await server.comm.recv_any()
        if i == server.size + self.regions:
            self.merge(server, message)
        elif message.numel():
            self.apply(server, i, message)
            if server.counter("since") >= self.arrivals and not server.counter("in_flight"):
                self.send_up(server)
        else:
            server.increment("goodbyes")

    def apply(self, server: Worker, i: int, message: Tensor) -> None:
        """Apply an outer gradient of worker ``i`` and reply."""
        reference = server.state("reference", server.params.clone)
        if not server.counter("since") and not server.counter("in_flight"):
            reference.copy_(server.params)  # they differ if ranks have been lost
        delayed_nesterov(server, message[:-1], self.lr, self.momentum, self.delay)
        steps = int(message[-1])
        server.state["received"], server.state["unsent"] = steps, server.counter("unsent") + steps
        server.increment("since")
        server.comm.send(i, server.params.clone())

    def send_up(self, server: Worker) -> None:
        """Send the global server an update and the number of inner steps since the last one."""
        import torch

        change = server.state["reference"] - server.params
        steps = change.new_full((1,), server.state.pop("unsent"))
        server.comm.send(server.size + self.regions, torch.cat([change, steps]))
        server.state["in_flight"] = 1

    def merge(self, server: Worker, parameters: Tensor) -> None:
        server.params.lerp_(parameters, self.alpha)
        server.state["reference"].copy_(server.params)
        server.state["in_flight"] = server.state["since"] = 0

    async def serve_regions(self, server: Worker) -> None:
        for _ in server.steps():  # the inner steps of all workers
            while not server.counter("received"):
                i, message = await server.comm.recv_any()
                rates = self.global_lr, self.global_momentum, self.global_delay
                delayed_nesterov(server, message[:-1], *rates)
                server.state["received"] = int(message[-1])
                server.comm.send(i, server.params.clone())
            server.state["received"] -= 1
