"""Gap-Aware ASGD (Barkai et al. 2020), Staleness-Aware ASGD and ASGD, by ``penalty``.

A parameter server and ``n`` workers without a barrier. The server divides a gradient (weight decay
included) by the gap between the parameters now and those it was taken at, counted in typical steps:

    G = 1 + |x - x_sent| / C,   C = gamma_max (sqrt(EMA_0.999(v^2)) + 1e-8)

with ``gamma_max`` the largest learning rate so far, ``v`` the momentum buffer (without momentum the
gradient as it came in, before it is divided) and the average bias-corrected. The learning rate
follows the global number of gradients and is not scaled by ``n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.ps_sgd import push_and_pull
from sgp_runner.core.flat import in_pieces
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from sgp_runner.core.optim import Optimizer
    from sgp_runner.core.worker import Worker

EMA = 0.999


@dataclass(frozen=True)
class GapAware(Algorithm):
    """Asynchronous SGD whose server divides stale gradients.

    penalty: what a gradient is divided by: gap (GA), staleness (SA: the number of steps missed, at
        least 1) or none (ASGD)
    gap: measured per parameter, per layer (norms of one parameter tensor) or global
    momentum: one buffer at the server, one per_worker, or dana: one per worker, and workers get the
        look-ahead x - gamma m sum_j v_j, against which the gap is measured as well. per_worker with
        Nesterov momentum sends the same point (DANA-Slim), so dana takes plain momentum
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

    async def serve(self, worker: Worker) -> None:
        for k in worker.steps():  # one gradient each
            i, gradient = await worker.comm.recv_any()
            worker.comm.send(i, self.answer(worker, k, i, gradient))

    def answer(self, server: Worker, k: int, i: int, gradient: Tensor) -> Tensor:
        """Apply the ``gradient`` [D] of worker ``i`` in step ``k``; return its parameters [D]."""
        import torch

        params, m = server.params, server.optim.momentum
        owners = server.size if self.momentum != "server" else 1
        momenta = server.keep(
            "momentum", lambda: [params.new_zeros(params.shape) for _ in range(owners)]
        )
        squares = server.keep("mean_square", lambda: params.new_zeros(params.shape))
        # (step, parameters) that each worker has.
        sent = server.keep("sent", lambda: [(k, params.clone()) for _ in range(server.size)])
        lr_max = server.keep("lr_max", lambda: params.new_zeros(()))
        lr, lr_before = server.lr, server.lr_at(max(k - 1, 0))
        lr_max.clamp_(min=lr)
        (step, params_sent), answer = sent[i], torch.empty_like(params)
        server.observe("staleness", k - step)
        measured = self.penalty == "gap" and k > 0 and lr_max > 0
        for received, x, x_sent, square, here, *v in self.slices(
            server, gradient, params, params_sent, squares, answer, *momenta
        ):
            g = received.add(x, alpha=server.optim.weight_decay)
            if self.penalty == "staleness":
                g /= max(1, k - step)
            elif measured:
                difference = self.look_ahead(x, v, m * lr_before) - x_sent
                g /= self.gap_of(
                    difference, (square / (1 - EMA**k)).sqrt_().add_(1e-8).mul_(lr_max)
                )
            v_i = v[i % owners]
            v_i.mul_(m).add_(g)
            typical = v_i if m else received
            square.mul_(EMA).addcmul_(typical, typical, value=1 - EMA)
            x.sub_(g.add_(v_i, alpha=m) if server.optim.nesterov else v_i, alpha=lr)
            here.copy_(self.look_ahead(x, v, m * lr))
        sent[i] = (k + 1, answer)
        return answer

    def slices(self, server: Worker, *vectors: Tensor) -> Iterable[tuple[Tensor, ...]]:
        """Matching slices of all ``vectors`` [D] in turn; a gap is measured within each."""
        if self.penalty != "gap" or self.gap == "parameter":
            return in_pieces(*vectors)
        if self.gap == "global":
            return [vectors]
        return zip(*(vector.split_with_sizes(server.layers) for vector in vectors), strict=True)

    def look_ahead(self, x: Tensor, v: list[Tensor], step: float) -> Tensor:
        """Where a worker takes its gradient: ``x``, or for DANA ``x - step sum_j v_j``."""
        if self.momentum != "dana":
            return x
        for v_j in v:
            x = x.sub(v_j, alpha=step)
        return x

    def gap_of(self, difference: Tensor, typical: Tensor) -> Tensor:
        """``G`` of each entry or all of a slice: 1 + ``difference`` in ``typical`` steps."""
        if self.gap == "parameter":
            return difference.abs_().div_(typical).add_(1)
        steps: Tensor = difference.norm() / typical.norm()
        return 1 + steps
