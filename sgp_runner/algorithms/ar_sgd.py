"""AR-SGD: synchronous SGD with an exact all-reduce every step (Goyal et al. 2017 is the recipe usually run with it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from sgp_runner.optim import Optimizer
    from sgp_runner.topology import Phase
    from sgp_runner.worker import Worker


@dataclass(frozen=True)
class ARSGD:
    """Every node takes the same step.

    average: gradients, communication overlapping the backward pass, or parameters after a local step: the same for SGD, not for Adam, where
        it is the baseline of the SlowMo paper's Transformer
    """

    average: Literal["gradients", "parameters"] = "gradients"
    title: ClassVar[str] = "AR-SGD"
    asynchronous: ClassVar[bool] = False
    servers: ClassVar[int] = 0

    def check(self, nodes: int, optim: Optimizer) -> None:
        """Every number of nodes and every optimizer works."""

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 1)]

    async def run(self, worker: Worker) -> None:
        x = worker.params
        for _ in worker.steps():
            if self.average == "gradients":
                x -= worker.update(await worker.mean_grad())
            else:
                x -= worker.update(await worker.grad())
                x.copy_(await worker.comm.all_reduce(x.clone()))
