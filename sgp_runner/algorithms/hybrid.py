"""Hybrids (Assran et al. 2019): one algorithm for the first epochs, another for the rest.

An example is AR-SGD for 30 epochs, then SGP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.push_sum import average
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import ConfigError, inside


@dataclass(frozen=True)
class Hybrid(Algorithm):
    """Two synchronous algorithms, one after the other; the switch averages models and momentum.

    first: the algorithm until switch_epoch
    then: the algorithm afterwards
    switch_epoch: number of epochs of the first algorithm
    """

    first: Algorithm
    then: Algorithm
    switch_epoch: float = 5
    source: ClassVar[str] = "assran2019"

    @property
    def title(self) -> str:
        return f"{self.first.title}, then {self.then.title}"

    def __post_init__(self) -> None:
        check_range("positive", "algo", self, "switch_epoch")
        for key, part in (("algo.first", self.first), ("algo.then", self.then)):
            if part.asynchronous or part.servers:
                raise ConfigError(
                    key,
                    f"{part.title} cannot be part of a hybrid: "
                    "use a synchronous algorithm without a server.",
                )

    def check(self, nodes: int, optim: Optimizer) -> None:
        for name, part in (("first", self.first), ("then", self.then)):
            with inside(f"algo.{name}"):
                part.check(nodes, optim)

    def phases(self, size: int) -> list[Phase]:
        before = [
            (epoch, steps) for epoch, steps in self.first.phases(size) if epoch < self.switch_epoch
        ]
        return before + [
            (max(epoch, self.switch_epoch), steps) for epoch, steps in self.then.phases(size)
        ]

    def warning(self, steps: int, epochs: float) -> str | None:
        if self.switch_epoch < epochs:
            return None
        switch = f"algo.switch_epoch={self.switch_epoch:g}"
        return f"algo.then never runs: {switch} is not before the end, epochs={epochs:g}."

    async def run(self, worker: Worker) -> None:
        before = round(self.switch_epoch * worker.steps_per_epoch) - (worker.step + 1)
        if before > 0:
            await self.first.run(worker.limit(before))
            await self.switch(worker)
        await self.then.run(worker)

    async def switch(self, worker: Worker) -> None:
        """Average models and momentum.

        Without this average, AR-SGD would preserve any difference between workers for the rest of
        the run.
        """
        await average(worker)
        for buffer in worker.buffers.values():
            buffer.copy_(await worker.comm.all_reduce(buffer.clone()))
        worker.state.clear()  # `then` may be of the same kind
