"""Asynchronous DiLoCo (Liu et al. 2024): Delayed Nesterov and dynamic local updates.

A worker takes inner steps from ``theta``, sends the server their change ``g = theta - x``, and
continues from the server's parameters. The server applies the arrivals t = 0, 1, ... of ``g`` with
``N = delay``, starting from B = m = 0 (Delayed Nesterov, Alg. 3):

    B <- B + g
    if N divides t + 1:  m <- beta m + B / N;  theta <- theta - lr ((1 - c N + c) beta m + g / N)
                         B <- 0
    else:                theta <- theta - lr (c beta m + g / N)

After the first arrival the server waits ``grace`` seconds for further arrivals. It applies the
outer gradients of this batch in the order of arrival. All workers of the batch restart from the
same parameters. Worker w, with speed v_w, takes ``floor(period v_w / max v)`` inner steps (DyLU);
the minimum of 1 step is our addition. With equal speeds and ``N`` workers in every batch this is
DiLoCo.

The state of an inner optimizer stays on its worker. The learning rate follows the worker's own
steps on its shard. Here each worker keeps its shard, whereas in the paper it receives a shard that
lags behind. A fast worker therefore finishes its shard early and continues with the last learning
rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.optim import Horizon, Optimizer
from sgp_runner.core.outer import check_outer
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.units import Seconds

if TYPE_CHECKING:
    from torch import Tensor


LONG = Horizon(1e6, 1.0, 1, 1)  # at its end, a schedule has its last learning rate


@dataclass(frozen=True)
class AsyncDiLoCo(Algorithm):
    """Local steps on workers, and an outer step on a server whenever a worker finishes its steps.

    period: inner steps of the fastest worker between its outer gradients, H
    lr: outer learning rate
    momentum: outer momentum, beta
    delay: outer gradients per momentum step, N; null: the number of nodes
    c: share of the momentum in the outer steps between two momentum steps, from 0 to 1 / N
    grace: seconds that the server waits for further outer gradients after the first of a batch
    speeds: speed of each worker, in steps per second or any other unit, e.g. [4,4,2,1]; slower
        workers take fewer inner steps; null: equal speeds
    """

    period: int = 50
    lr: float = 0.7
    momentum: float = 0.9
    delay: int | None = None
    c: float = 0.0
    grace: Seconds = 0.0
    speeds: tuple[float, ...] | None = None
    title: ClassVar[str] = "Async DiLoCo"
    source: ClassVar[str] = "liu2024"
    asynchronous: ClassVar[bool] = True
    servers: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_outer(self)
        if self.delay is not None:
            check_least(1, "algo", self, "delay")
        check_range("not negative", "algo", self, "grace")
        check_speeds(self.speeds)

    def check(self, nodes: int, optim: Optimizer) -> None:
        most = 1 / (self.delay or nodes)
        if not 0 <= self.c <= most:
            raise ConfigError("algo.c", f"must be from 0 to 1/N = {most:.4g}, not {self.c}.")
        check_workers(self.title, self.speeds, nodes, optim)

    def warning(self, steps: int, epochs: float) -> str | None:
        if steps >= self.period:
            return None
        period = f"algo.period={self.period}"
        return f"{self.title} exchanges once in {steps} steps: {period} is longer than the run."

    def inner_steps(self, rank: int) -> int:
        """Return the inner steps of worker ``rank`` between two outer gradients (DyLU)."""
        return dylu(self.period, self.speeds, rank)

    async def run(self, worker: Worker) -> None:
        await (
            self.serve(worker)
            if worker.is_server
            else work(worker, worker.size, self.inner_steps(worker.rank))
        )

    async def serve(self, server: Worker) -> None:
        for _ in server.steps():  # the inner steps of all workers
            if not server.counter("received"):
                await self.exchange(server)
            server.state["received"] -= 1

    async def exchange(self, server: Worker) -> None:
        """Receive a batch of outer gradients, apply them, and reply."""
        first = await server.comm.recv_any()
        await server.sleep(self.grace)
        batch = dict([first, *iter(server.comm.poll_any, None)])  # in the order of arrival
        sent = server.state("sent", lambda: [0] * server.size)  # arrivals at each one's start
        for i, message in batch.items():
            server.log("staleness", server.counter("arrivals") - sent[i])
            self.outer_step(server, message[:-1])
        server.state["received"] = sum(int(message[-1]) for message in batch.values())
        theta = server.params.clone()
        for i in batch:
            sent[i] = server.counter("arrivals")
            server.comm.send(i, theta)

    def outer_step(self, server: Worker, g: Tensor) -> None:
        """Apply the outer gradient ``g`` [D]."""
        n = self.delay or server.size
        delayed_nesterov(server, g, self.lr, self.momentum, n, self.c)


def dylu(period: int, speeds: Sequence[float] | None, rank: int) -> int:
    """Return the inner steps of worker ``rank`` if the fastest worker takes ``period`` steps."""
    share = 1.0 if speeds is None else speeds[rank] / max(speeds)
    return max(1, floor(period * share + 1e-9))  # 0.3 * 10 is 3, despite rounding


def check_speeds(speeds: Sequence[float] | None) -> None:
    """Raise ConfigError unless all ``speeds`` are positive."""
    if any(not 0 < speed < inf for speed in speeds or ()):
        raise ConfigError("algo.speeds", f"{list(speeds or ())} must be positive numbers.")


def check_workers(title: str, speeds: Sequence[float] | None, nodes: int, optim: Optimizer) -> None:
    """Raise ConfigError unless all nodes have ``speeds`` and the final learning rate is above 0."""
    if speeds is not None and len(speeds) != nodes:
        raise ConfigError(
            "algo.speeds", f"{len(speeds)} speeds for nodes={nodes}: give one per node."
        )
    if optim.schedule.factor(LONG.epochs, LONG) <= 0:
        raise ConfigError(
            "optim.schedule",
            f"{title} needs a learning rate above 0 at the end, when fast workers "
            "wait for slow workers: use optim.schedule=warmup_cosine, constant or steps.",
        )


async def work(worker: Worker, server: int, inner_steps: int) -> None:
    """Send ``server`` the change after every ``inner_steps`` steps; continue from its replies."""
    x, worker.lr_follows_own_steps = worker.params, True
    theta = worker.state("start", x.clone)
    for _ in worker.steps():
        if not worker.increment("inner"):
            theta.copy_(x)
        await worker.descend()
        if worker.counter("inner") == inner_steps:
            await push(worker, server, theta)
    if worker.counter("inner"):
        await push(worker, server, theta)


async def push(worker: Worker, server: int, theta: Tensor) -> None:
    """Send the outer gradient with its number of steps as the last element; adopt the reply."""
    import torch

    x = worker.params
    steps = x.new_full((1,), worker.state.pop("inner"))
    worker.comm.send(server, torch.cat([theta - x, steps]))
    x.copy_(await worker.comm.recv(server))


def delayed_nesterov(
    server: Worker, g: Tensor, lr: float, beta: float, n: int, c: float = 0.0
) -> None:
    """Apply the outer gradient ``g`` [D] to the server's parameters by Delayed Nesterov."""
    theta = server.params
    m = server.state("outer_momentum", lambda: theta.new_zeros(theta.shape))
    delayed = server.state("delayed", lambda: theta.new_zeros(theta.shape))
    t = server.increment("arrivals")
    if t % n == 0:
        delayed.zero_()
    delayed += g
    step, share = g / n, c
    if (t + 1) % n == 0:
        m.mul_(beta).add_(delayed, alpha=1 / n)
        share = 1 - c * n + c
    theta.sub_(step.add_(m, alpha=share * beta), alpha=lr)
