"""Gap-Aware ASGD (Barkai et al. 2020), Staleness-Aware ASGD and ASGD, selected by ``penalty``.

A parameter server serves ``n`` workers without a barrier. It divides each gradient (weight decay
included) by its gap: the distance, in typical steps, between the current parameters and the
parameters at which the gradient was taken:

    G = 1 + |x - x_sent| / C,   C = gamma_max (sqrt(EMA_0.999(v^2)) + 1e-8)

``gamma_max`` is the largest learning rate so far. ``v`` is the momentum buffer or, without
momentum, the gradient as received. The average is bias-corrected. The learning rate follows the
global number of gradients and is not scaled by ``n``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ps_sgd import push_and_pull
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


EMA = 0.999


@dataclass(frozen=True)
class GapAware(Algorithm):
    """Asynchronous SGD with a parameter server that scales down stale gradients.

    penalty: divisor of a gradient: gap (GA), staleness (SA: the number of steps missed, at least 1)
        or none (ASGD)
    gap: granularity of the gap: parameter, layer (norms of one parameter tensor) or global
    momentum: server: one buffer; per_worker: one buffer per worker; dana: as per_worker, but
        workers get the look-ahead point x - gamma m sum_j v_j, from which the gap is measured.
        dana needs plain momentum, because per_worker with Nesterov momentum sends the same point
        already (DANA-Slim)
    """

    penalty: Literal["gap", "staleness", "none"] = "gap"
    gap: Literal["parameter", "layer", "global"] = "parameter"
    momentum: Literal["server", "per_worker", "dana"] = "server"
    asynchronous: ClassVar[bool] = True
    servers: ClassVar[int] = 1
    source: ClassVar[str] = "barkai2020"

    @property
    def title(self) -> str:
        return {"gap": "Gap-Aware", "staleness": "Staleness-Aware", "none": "ASGD"}[self.penalty]

    def check(self, nodes: int, optim: Optimizer) -> None:
        if optim.name != "sgd":
            raise ConfigError(
                "optim",
                f"{self.title} takes its momentum step on the server and needs optim=sgd, "
                f"not {optim.name}.",
            )
        if self.momentum == "dana" and optim.momentum and optim.nesterov:
            raise ConfigError(
                "algo.momentum",
                "dana with Nesterov momentum would look ahead twice: "
                "use optim.nesterov=false, or algo.momentum=per_worker, which is DANA-Slim.",
            )

    async def run(self, worker: Worker) -> None:
        await (self.serve(worker) if worker.is_server else push_and_pull(worker))

    async def serve(self, server: Worker) -> None:
        for k in server.steps():  # one gradient each
            i, gradient = await server.comm.recv_any()
            server.comm.send(i, self.answer(server, k, i, gradient))

    def answer(self, server: Worker, k: int, i: int, gradient: Tensor) -> Tensor:
        """Apply the ``gradient`` [D] of worker ``i`` in step ``k``; return the ``x`` to send."""
        x, m, lr = server.params, server.optim.momentum, server.lr
        buffers = 1 if self.momentum == "server" else server.size
        v = server.state("momentum", lambda: [x.new_zeros(x.shape) for _ in range(buffers)])
        v_i = v[i % buffers]
        square = server.state("mean_square", lambda: x.new_zeros(x.shape))
        # (step, parameters) last sent to each worker.
        sent = server.state("sent", lambda: [(k, x.clone()) for _ in range(server.size)])
        step, x_sent = sent[i]
        lr_max = server.state("lr_max", lambda: x.new_zeros(())).clamp_(min=lr)
        server.log("staleness", k - step)

        g = gradient.add(x, alpha=server.optim.weight_decay)
        if self.penalty == "staleness":
            g /= max(1, k - step)
        elif self.penalty == "gap" and k > 0 and (lr > 0 or lr_max > 0):
            typical_step = (square / (1 - EMA**k)).sqrt_().add_(1e-8).mul_(lr_max)
            x_now = self.look_ahead(x, v, m * server.lr_at(k - 1))
            g /= self.gap_of(x_now - x_sent, typical_step, server.layers)
        v_i.mul_(m).add_(g)
        typical = v_i if m else gradient
        square.mul_(EMA).addcmul_(typical, typical, value=1 - EMA)
        x.sub_(g.add_(v_i, alpha=m) if server.optim.nesterov else v_i, alpha=lr)

        sent[i] = (k + 1, self.look_ahead(x, v, m * lr).clone())
        return sent[i][1]

    def look_ahead(self, x: Tensor, v: list[Tensor], step: float) -> Tensor:
        """Return the point for the next gradient: ``x``, or for DANA ``x - step sum_j v_j``."""
        if self.momentum != "dana":
            return x
        for v_j in v:
            x = x.sub(v_j, alpha=step)
        return x

    def gap_of(self, moved: Tensor, typical: Tensor, layers: Sequence[int]) -> Tensor:
        """Return the gap ``G`` of each parameter [D]: 1 + ``moved / typical``."""
        import torch

        if self.gap == "parameter":
            return moved.abs_().div_(typical).add_(1)
        if self.gap == "global":
            layers = [moved.numel()]
        gaps = [
            (1 + part.norm() / steps.norm()).expand_as(part)
            for part, steps in zip(
                moved.split_with_sizes(layers), typical.split_with_sizes(layers), strict=True
            )
        ]
        return torch.cat(gaps)
