"""SparseLoCo (Sarfi et al. 2025; Covenant): local steps and outer steps on coded differences.

Every ``period`` inner steps, with error feedback ``e`` on each worker:

    e <- beta e + theta - x_i;  q_i = Q(e);  e <- e - q_i
    theta <- theta - lr mean_i q_i;  x_i <- theta

``Q`` keeps the largest elements of every chunk, with two bits for each. The papers divide the sum
by the number of workers. The released code, which gave the papers' results, divides each coordinate
by the number of workers that sent it (``divide_by=senders``). With a lossless ``Q`` this is DiLoCo
without momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.coder import Coder
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class SparseLoCo(Algorithm):
    """Local steps and an outer step along the mean of coded differences.

    codec: codes the differences; the coding error is sent later
    period: inner steps between outer steps, H
    beta: decay of the coding error from one exchange to the next
    lr: outer learning rate
    divide_by: divisor of the sum of a coordinate: workers (their number), or senders (the number of
        workers that sent the coordinate)
    """

    codec: Codec
    period: int = 30
    beta: float = 0.95
    lr: float = 1.0
    divide_by: Literal["workers", "senders"] = "workers"
    title: ClassVar[str] = "SparseLoCo"
    source: ClassVar[str] = "sarfi2025"

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "period")
        check_range("[0, 1]", "algo", self, "beta")
        check_range("positive", "algo", self, "lr")

    async def run(self, worker: Worker) -> None:
        x = worker.params
        theta = worker.state("outer", x.clone)
        coder = Coder(worker, self.codec, decay=self.beta)
        for k in worker.steps():
            await worker.descend()
            if (k + 1) % self.period == 0 or worker.done:
                delta = await coder.mean(theta - x, k, self.divide_by)
                theta.sub_(delta, alpha=self.lr)
                x.copy_(theta)
