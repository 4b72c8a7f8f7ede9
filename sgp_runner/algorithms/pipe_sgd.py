"""Pipe-SGD (Li et al. 2018): a pipeline of ``K`` gradients, all-reduced while newer ones compute.

Step ``t`` applies the mean gradient of step ``t - (K - 1)``; ``K = 1`` is AR-SGD. The first epochs
run synchronously. Gradients left in the
pipeline at the end are applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.compression import finish_ring, start_ring
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Phase


@dataclass(frozen=True)
class PipeSGD(Algorithm):
    """Gradients averaged in a pipeline.

    depth: width K of the pipeline; 1 is AR-SGD
    warmup_epochs: epochs that run with depth 1
    clip: largest norm of the mean gradient, applied after averaging; null does not clip
    compression: of every message inside the all-reduce: none, truncate16 (bfloat16 by truncation)
        or quantize8 (8-bit linear, scaled by the largest magnitude)
    """

    depth: int = 2
    warmup_epochs: float = 0
    clip: float | None = None
    compression: Literal["none", "truncate16", "quantize8"] = "none"
    title: ClassVar[str] = "Pipe-SGD"

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ConfigError("algo.depth", f"{self.depth} must be at least 1 (which is AR-SGD).")
        if self.warmup_epochs < 0:
            raise ConfigError("algo.warmup_epochs", f"{self.warmup_epochs} must not be negative.")
        if self.clip is not None and self.clip <= 0:
            raise ConfigError(
                "algo.clip", f"{self.clip} must be positive, or null for no clipping."
            )

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 1), (self.warmup_epochs, self.depth)]

    async def run(self, worker: Worker) -> None:
        pipeline: list[Any] = worker.keep("pipeline", list)  # averages under way, oldest first
        means = deque(self.mean(worker, average) for average in pipeline)
        for k in worker.steps():
            width = 1 if worker.epoch < self.warmup_epochs else self.depth
            pipeline.append(self.start_average(worker, k, await worker.grad()))
            means.append(self.mean(worker, pipeline[-1]))
            while len(means) >= width:
                await self.apply(worker, means, pipeline)
        while means:
            await self.apply(worker, means, pipeline)

    def start_average(self, worker: Worker, k: int, g: Tensor) -> Any:
        if self.compression == "none":
            return worker.comm.all_reduce(g)
        return start_ring(worker, g, self.compression, tag=k + 1)

    def mean(self, worker: Worker, average: Any) -> Awaitable[Tensor]:
        if self.compression == "none":
            return cast("Awaitable[Tensor]", average)
        return worker.spawn(finish_ring(worker, average))

    async def apply(
        self, worker: Worker, means: deque[Awaitable[Tensor]], pipeline: list[Any]
    ) -> None:
        g = await means.popleft()
        del pipeline[0]
        if self.clip is not None:
            g *= (self.clip / (g.norm() + 1e-6)).clamp(max=1)
        worker.params.sub_(worker.update(g))
