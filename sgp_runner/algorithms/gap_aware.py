"""Gap-Aware ASGD (Barkai et al. 2020), with ASGD and Staleness-Aware ASGD as ``penalty=none|staleness``.

A parameter server and ``n`` workers without a barrier. The server divides a gradient (weight decay included) by the gap between the
parameters now and those it was taken at, counted in typical steps:

    G = 1 + |x - x_sent| / C,   C = gamma_max (sqrt(EMA_0.999(v^2)) + 1e-8)

with ``gamma_max`` the largest learning rate so far, ``v`` the momentum buffer (the gradient without momentum) and the average
bias-corrected. The learning rate follows the global number of gradients and is not scaled by ``n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.optim import Optimizer
    from sgp_runner.topology import Phase
    from sgp_runner.worker import Worker

EMA = 0.999


@dataclass(frozen=True)
class GapAware:
    """penalty: ``gap`` (GA), ``staleness`` (SA: divide by the number of steps missed, at least 1) or ``none`` (ASGD).

    gap: measured per ``parameter``, per ``layer`` (norms of one parameter tensor) or ``global``.
    momentum: one buffer at the ``server``, one ``per_worker``, or ``dana``: one per worker, and workers get the look-ahead
        ``x - gamma m sum_j v_j``, against which the gap is measured as well.
    """

    penalty: Literal["gap", "staleness", "none"] = "gap"
    gap: Literal["parameter", "layer", "global"] = "parameter"
    momentum: Literal["server", "per_worker", "dana"] = "server"
    asynchronous: ClassVar[bool] = True
    servers: ClassVar[int] = 1

    @property
    def title(self) -> str:
        return {"gap": "Gap-Aware", "staleness": "Staleness-Aware", "none": "ASGD"}[self.penalty]

    def check(self, nodes: int, optim: Optimizer) -> None:
        if optim.name != "sgd":
            raise ConfigError("optim", f"{self.title} takes its momentum step on the server and needs optim=sgd, not {optim.name}.")

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 1)]

    async def run(self, worker: Worker) -> None:
        await (self.serve(worker) if worker.is_server else self.work(worker))

    async def work(self, worker: Worker) -> None:
        server = worker.size
        for _ in worker.steps():
            worker.comm.send(server, await worker.grad())
            worker.params.copy_(await worker.comm.recv(server))

    async def serve(self, worker: Worker) -> None:
        x, m = worker.params, worker.optim.momentum
        owners = worker.size if self.momentum != "server" else 1
        v = worker.keep("momentum", lambda: [x.new_zeros(x.shape) for _ in range(owners)])
        square = worker.keep("mean_square", lambda: x.new_zeros(x.shape))
        sent = worker.keep("sent", lambda: [(worker.step + 1, x.clone()) for _ in range(worker.size)])  # (step, parameters) each has
        lr_max = worker.keep("lr_max", lambda: x.new_zeros(()))
        for k in worker.steps():  # one gradient each
            i, g = await worker.comm.recv_any()
            lr = worker.lr
            lr_max.clamp_(min=lr)
            step, x_sent = sent[i]
            worker.observe("staleness", k - step)
            g = g.add(x, alpha=worker.optim.weight_decay)
            if self.penalty == "staleness":
                g /= max(1, k - step)
            elif self.penalty == "gap" and k > 0 and lr_max > 0:
                here = self.look_ahead(x, v, m * worker.lr_at(k - 1))
                g /= self.gaps(here - x_sent, lr_max * ((square / (1 - EMA**k)).sqrt_().add_(1e-8)), worker.layers)
            v_i = v[i % owners]
            v_i.mul_(m).add_(g)
            square.mul_(EMA).addcmul_(v_i, v_i, value=1 - EMA)
            x.sub_(g.add_(v_i, alpha=m) if worker.optim.nesterov else v_i, alpha=lr)
            sent[i] = (k + 1, self.look_ahead(x, v, m * lr).clone())
            worker.comm.send(i, sent[i][1])

    def look_ahead(self, x: Tensor, v: list[Tensor], step: float) -> Tensor:
        """Where a worker should take its gradient: ``x``, or for DANA ``x - step sum_j v_j``."""
        if self.momentum != "dana":
            return x
        for v_j in v:
            x = x.sub(v_j, alpha=step)
        return x

    def gaps(self, difference: Tensor, typical: Tensor, layers: tuple[int, ...]) -> Tensor:
        """``G`` [D]: 1 + ``difference`` counted in ``typical`` steps (both [D])."""
        if self.gap == "parameter":
            return difference.abs_().div_(typical).add_(1)
        sizes = layers if self.gap == "layer" else (difference.numel(),)
        gap = difference.new_empty(difference.shape)
        for part, d, c in zip(*(t.split_with_sizes(sizes) for t in (gap, difference, typical)), strict=True):
            part.fill_(1 + d.norm() / c.norm())
        return gap
