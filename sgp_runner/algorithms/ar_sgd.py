"""AR-SGD: synchronous SGD with an exact all-reduce every step.

Goyal et al. 2017 is the recipe usually run with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm

if TYPE_CHECKING:
    from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class ARSGD(Algorithm):
    """Every node takes the same step.

    average: gradients, communication overlapping the backward pass, or parameters after a local
        step: the same for SGD, not for Adam, where it is the baseline of the SlowMo paper's
        Transformer
    """

    average: Literal["gradients", "parameters"] = "gradients"
    title: ClassVar[str] = "AR-SGD"

    async def run(self, worker: Worker) -> None:
        x = worker.params
        for _ in worker.steps():
            if self.average == "gradients":
                x -= worker.update(await worker.mean_grad())
            else:
                x -= worker.update(await worker.grad())
                x.copy_(await worker.comm.all_reduce(x.clone()))
