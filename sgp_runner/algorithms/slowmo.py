"""SlowMo (Wang et al. 2020, Alg. 1): a slow momentum step every ``tau`` steps of a base algorithm.

    x_tau = sum_i x_i / sum_i w_i
    u <- beta u + (x_0 - x_tau) / gamma
    x_0 <- x_0 - alpha gamma u;  all restart from x_0

``gamma`` is the learning rate of the last fast step; ``w_i`` is the push-sum weight, 1 without
push-sum. A last period of fewer than ``tau`` steps ends with an average but no slow step. Over
local SGD, ``alpha = 1`` and ``beta = 0`` give local SGD with period ``tau``, and ``beta > 0`` gives
BMUF. On one node, ``beta = 0`` gives Lookahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.local_sgd import LocalSGD
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.push_sum import average
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import ConfigError, inside


@dataclass(frozen=True)
class SlowMo(Algorithm):
    """Slow momentum on top of a synchronous algorithm.

    base: the fast algorithm; it drains its messages before each slow step
    tau: fast steps between slow steps; null: 12 over local SGD and 48 over other algorithms, as in
        the paper; algo.period is the same setting
    alpha: slow learning rate
    beta: slow momentum
    buffers: treatment of the fast optimizer's buffers at a slow step: reset, keep, average (double
        averaging: over the nodes), or auto (reset for SGD, keep for Adam, as in the paper)
    exact_average: false: skip the exact average; then every node has its own slow momentum and
        keeps its push-sum weight
    """

    base: Algorithm
    tau: int | None = None
    alpha: float = 1.0
    beta: float = 0.5
    buffers: Literal["auto", "reset", "keep", "average"] = "auto"
    exact_average: bool = True
    aliases: ClassVar[Mapping[str, str]] = {"period": "tau"}
    source: ClassVar[str] = "wang2020"

    @property
    def title(self) -> str:
        return f"SlowMo({self.base.title})"

    def __post_init__(self) -> None:
        if self.tau is not None and self.tau < 1:
            raise ConfigError(
                "algo.tau", f"{self.tau} must be at least 1 step, or null as in the paper."
            )
        check_range("positive", "algo", self, "alpha")
        check_range("[0, 1)", "algo", self, "beta")
        if self.base.asynchronous or self.base.servers or isinstance(self.base, SlowMo):
            raise ConfigError(
                "algo.base",
                f"SlowMo cannot wrap {self.base.title}: "
                "use local_sgd, sgp, osgp, d_psgd or ar_sgd.",
            )

    @property
    def period(self) -> int:
        """The number of fast steps between slow steps."""
        return self.tau or (12 if isinstance(self.base, LocalSGD) else 48)

    def check(self, nodes: int, optim: Optimizer) -> None:
        with inside("algo.base"):
            self.base.check(nodes, optim)

    def phases(self, size: int) -> list[Phase]:
        return [(epoch, lcm(self.period, steps)) for epoch, steps in self.base.phases(size)]

    def cycle(self, size: int) -> int | None:
        steps = self.base.cycle(size)
        return None if steps is None else lcm(self.period, steps)

    def warning(self, steps: int, epochs: float) -> str | None:
        if steps >= self.period:
            return None
        tau = f"algo.tau={self.period}"
        return f"SlowMo makes 0 slow steps in {steps}: {tau} is longer than the run."

    async def run(self, worker: Worker) -> None:
        x = worker.params
        x0 = worker.state("slowmo_x0", x.clone)
        u = worker.state("slowmo_u", lambda: x.new_zeros(x.shape))
        start = worker.state("slowmo_start", lambda: worker.steps_taken)
        for fast in worker.periods(self.period, start):
            await self.base.run(fast)
            if self.exact_average:
                await average(worker)
            if (worker.steps_taken - start) % self.period:
                return  # a shorter last period
            u *= self.beta
            if worker.lr > 0:  # without a fast step there is nothing to add
                u += (x0 - x) / worker.lr
            x0.sub_(u, alpha=self.alpha * worker.lr)
            x.copy_(x0)
            await self.treat_buffers(worker)

    async def treat_buffers(self, worker: Worker) -> None:
        treatment = worker.optim.slow_buffers if self.buffers == "auto" else self.buffers
        if treatment == "reset":
            worker.reset_buffers()
        elif treatment == "average":
            for buffer in worker.buffers.values():
                buffer.copy_(await worker.comm.all_reduce(buffer.clone()))
