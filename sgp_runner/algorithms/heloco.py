"""HeLoCo (arXiv:2606.00271, 2026), experimental: asynchronous DiLoCo that corrects directions.

A worker takes inner steps, sends the server their change ``d``, and continues from the reply, as in
Async DiLoCo. For each tensor of an arriving change, with the outer momentum m of this tensor,

    c = cos(d, m),  f = |d| / (|d| + balance |m| + 1e-8)
    c >= aligned:  d' = d
    c < 0:         d' = d - b c (|d| / |m|) m,  b = min(-damping c f, most)
    else:          d' = |d| a / |a|,  a = (1 - l) d / |d| + l m / |m|
                   l = min(turning (1 - c) f, 1)

and ``d' = d`` if a norm is below 1e-8. Then, with ``scale`` s,

    m <- momentum m + (1 - momentum) s d';  theta <- theta - lr (s d' + momentum m)
    reply theta - lr momentum m

Unlike DiLoCo's, the momentum is a mean, with the factor ``1 - momentum``. Our sources are three
summaries that agree; the outer rate and momentum are from one of them. With ``aligned = -1``,
nothing is corrected; with momentum 0 and scale 1 it is then Async DiLoCo with momentum 0 and delay
1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.async_diloco import check_speeds, check_workers, dylu, work
from sgp_runner.algorithms.diloco import check_outer
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker

if TYPE_CHECKING:
    from torch import Tensor


EPS = 1e-8


@dataclass(frozen=True)
class HeLoCo(Algorithm):
    """Experimental: asynchronous outer steps along changes that are turned towards the momentum.

    period: inner steps of the fastest worker between its outer gradients, H
    lr: outer learning rate
    momentum: outer momentum
    scale: factor of a corrected change; null: 1 / sqrt(nodes)
    aligned: smallest cosine of a change that is not corrected; -1: correct none
    damping: strength of the correction of a change against the momentum
    most: largest share of the opposing component that this correction removes
    turning: strength of the correction of a change nearly across the momentum
    balance: weight of the momentum's norm against that of the change
    speeds: speed of each worker, as in Async DiLoCo; null: equal speeds
    """

    period: int = 50
    lr: float = 0.7
    momentum: float = 0.9
    scale: float | None = None
    aligned: float = 0.2
    damping: float = 0.5
    most: float = 0.5
    turning: float = 1.0
    balance: float = 3.0
    speeds: tuple[float, ...] | None = None
    title: ClassVar[str] = "HeLoCo"
    source: ClassVar[str] = "alasif2026"
    asynchronous: ClassVar[bool] = True
    servers: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_outer(self)
        check_range("not negative", "algo", self, "damping", "most", "turning", "balance")
        check_range("[-1, 1]", "algo", self, "aligned")
        if self.scale is not None:
            check_range("positive", "algo", self, "scale")
        check_speeds(self.speeds)

    def check(self, nodes: int, optim: Optimizer) -> None:
        check_workers(self.title, self.speeds, nodes, optim)

    async def run(self, worker: Worker) -> None:
        if worker.is_server:
            await self.serve(worker)
        else:
            await work(worker, worker.size, dylu(self.period, self.speeds, worker.rank))

    async def serve(self, server: Worker) -> None:
        theta = server.params
        m = server.state("outer_momentum", lambda: theta.new_zeros(theta.shape))
        scale = server.size**-0.5 if self.scale is None else self.scale
        for _ in server.steps():  # the inner steps of all workers
            while not server.counter("received"):
                i, message = await server.comm.recv_any()
                d = self.corrected(server, message[:-1], m).mul_(scale)
                m.mul_(self.momentum).add_(d, alpha=1 - self.momentum)
                theta.sub_(d, alpha=self.lr).sub_(m, alpha=self.lr * self.momentum)
                server.comm.send(i, theta.sub(m, alpha=self.lr * self.momentum))
                server.state["received"] = int(message[-1])
            server.state["received"] -= 1

    def corrected(self, server: Worker, change: Tensor, m: Tensor) -> Tensor:
        """Return the ``change`` [D] with each tensor turned towards the momentum ``m`` [D]."""
        import torch

        if not server.has_gradients:
            return change.clone()
        pairs = (each.split_with_sizes(server.layers) for each in (change, m))
        return torch.cat([self.turned(*pair) for pair in zip(*pairs, strict=True)])

    def turned(self, d: Tensor, m: Tensor) -> Tensor:
        """Return the change ``d`` [n] of one tensor with its direction corrected."""
        import torch

        size, speed = d.norm(), m.norm()
        c = ((d @ m) / (size * speed)).clamp(-1, 1)
        f = size / (size + self.balance * speed + EPS)
        b = (-self.damping * c * f).clamp(max=self.most)
        damped = d - m * (b * c * size / speed)
        share = (self.turning * (1 - c) * f).clamp(max=1)
        a = d * ((1 - share) / size) + m * (share / speed)
        turned = torch.where(c < 0, damped, a * (size / a.norm()))
        keep = (size < EPS) | (speed < EPS) | (c >= self.aligned)
        return torch.where(keep, d, turned)
