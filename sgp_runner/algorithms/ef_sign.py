"""EF-SignSGD (Karimireddy et al. 2019): coded steps with error feedback on the steps.

    p_i = d_i + e_i;  c_i = C(p_i);  e_i <- p_i - c_i
    x <- x - mean c_i

``d_i`` is the optimizer's step, lr g_i for plain SGD, and ``C`` by default the sign of each number
times the mean magnitude in its tensor. The error contains the learning rate, so a later change of
the rate does not rescale it. `ARSGD` with a codec codes gradients, and its error does not contain
the rate; with plain SGD and a constant rate, both are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.coder import Coder
from sgp_runner.core.codecs.quantised import Sign
from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class EFSign(Algorithm):
    """Means of coded steps; the coding error is sent later.

    codec: codes the steps
    """

    codec: Codec = field(default=Sign())
    title: ClassVar[str] = "EF-SignSGD"
    source: ClassVar[str] = "karimireddy2019"

    async def run(self, worker: Worker) -> None:
        x, coder = worker.params, Coder(worker, self.codec)
        for k in worker.steps():
            x -= await coder.mean(worker.update(await worker.grad()), k)
