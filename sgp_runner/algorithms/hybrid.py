"""Hybrids (Assran et al. 2019): one algorithm for the first epochs, another for the rest, e.g. AR-SGD for 30 and then SGP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.errors import ConfigError, inside

if TYPE_CHECKING:
    from sgp_runner.algorithms import Algorithm
    from sgp_runner.optim import Optimizer
    from sgp_runner.topology import Phase
    from sgp_runner.worker import Worker


@dataclass(frozen=True)
class Hybrid:
    """first: until ``switch_epoch``. then: afterwards. Both are synchronous.

    At the switch models and optimizer buffers are averaged, exactly.
    """

    first: Algorithm
    then: Algorithm
    switch_epoch: float
    asynchronous: ClassVar[bool] = False
    servers: ClassVar[int] = 0

    @property
    def title(self) -> str:
        return f"{self.first.title}, then {self.then.title}"

    def __post_init__(self) -> None:
        if self.switch_epoch <= 0:
            raise ConfigError("algo.switch_epoch", f"{self.switch_epoch} must be positive.")
        for key, part in (("algo.first", self.first), ("algo.then", self.then)):
            if part.asynchronous or part.servers:
                raise ConfigError(key, f"{part.title} cannot be part of a hybrid: use a synchronous algorithm without a server.")

    def check(self, nodes: int, optim: Optimizer) -> None:
        for name, part in (("first", self.first), ("then", self.then)):
            with inside(f"algo.{name}"):
                part.check(nodes, optim)

    def phases(self, size: int) -> list[Phase]:
        before = [(epoch, steps) for epoch, steps in self.first.phases(size) if epoch < self.switch_epoch]
        return before + [(max(epoch, self.switch_epoch), steps) for epoch, steps in self.then.phases(size)]

    async def run(self, worker: Worker) -> None:
        before = round(self.switch_epoch * worker.steps_per_epoch) - (worker.step + 1)
        if before > 0:
            await self.first.run(worker.limit(before))
            await self.average(worker)
        await self.then.run(worker)

    async def average(self, worker: Worker) -> None:
        """Everybody goes on from the mean model and the mean momentum: AR-SGD would keep any difference for ever."""
        for tensor in (worker.params, *worker.buffers.values()):
            tensor.copy_(await worker.comm.all_reduce(tensor.clone()))
        worker.push_sum[-1] = 1
        worker.state.clear()  # `then` may be of the same kind
