"""Local SGD (or local Adam): independent steps, with parameters averaged every ``tau`` steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import ConfigError


@dataclass(frozen=True)
class LocalSGD(Algorithm):
    """Independent steps and a periodic average.

    tau: steps between exact averages, the last one at the end; null: never, as the base of SlowMo;
        algo.period is the same setting
    """

    tau: int | None = 12
    title: ClassVar[str] = "Local SGD"
    aliases: ClassVar[Mapping[str, str]] = {"period": "tau"}
    source: ClassVar[str] = "stich2018"

    def __post_init__(self) -> None:
        if self.tau is not None and self.tau < 1:
            raise ConfigError(
                "algo.tau", f"{self.tau} must be at least 1 step, or null to never average."
            )

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, self.tau or 1)]

    async def run(self, worker: Worker) -> None:
        x = worker.params
        for k in worker.steps():
            await worker.descend()
            if self.tau is not None and ((k + 1) % self.tau == 0 or worker.done):
                x.copy_(await worker.comm.all_reduce(x.clone()))
