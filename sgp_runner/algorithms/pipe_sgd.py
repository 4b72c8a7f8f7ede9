"""Pipe-SGD (Li et al. 2018): a pipeline of ``K`` gradients; all-reduces overlap later gradients.

Step ``t`` applies the mean gradient of step ``t - (K - 1)``; ``K = 1`` is AR-SGD. The first epochs
are synchronous. At the end the gradients that are still in the pipeline are applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.averages import Averages
from sgp_runner.core.codecs.casts import Truncate16
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.quantised import Quantize8
from sgp_runner.core.optim.optimizer import check_clip, clipped
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import Tensor


CODECS: Mapping[str, Codec] = {"truncate16": Truncate16(), "quantize8": Quantize8()}


@dataclass(frozen=True)
class PipeSGD(Algorithm):
    """Gradients averaged in a pipeline.

    depth: number of gradients in the pipeline, K; 1 is AR-SGD
    warmup_epochs: epochs that run with depth 1
    clip: largest norm of the mean gradient, applied after averaging; null: no clipping
    compression: codec of every message inside the all-reduce: none, truncate16 (bfloat16 by
        truncation) or quantize8 (8-bit linear, scaled by the largest magnitude)
    """

    depth: int = 2
    warmup_epochs: float = 0
    clip: float | None = None
    compression: Literal["none", "truncate16", "quantize8"] = "none"
    title: ClassVar[str] = "Pipe-SGD"
    source: ClassVar[str] = "li2018"

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "depth")
        check_least(0, "algo", self, "warmup_epochs")
        check_clip("algo", self.clip)

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 1), (self.warmup_epochs, self.depth)]

    async def run(self, worker: Worker) -> None:
        averages = Averages(worker, CODECS.get(self.compression))
        for _ in worker.steps():
            await averages.start(await worker.grad())
            width = 1 if worker.epoch < self.warmup_epochs else self.depth
            while len(averages) >= width:
                self.step(worker, await averages.pop())
        while averages:
            self.step(worker, await averages.pop())

    def step(self, worker: Worker, g: Tensor) -> None:
        """Clip a mean gradient [D] and apply it."""
        clipped(g, self.clip, worker.shapes)
        worker.params.sub_(worker.update(g))
