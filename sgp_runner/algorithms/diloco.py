"""DiLoCo (Douillard et al. 2023, Alg. 1): inner steps of one optimizer, outer steps of another.

Every ``period`` inner steps, with outer parameters ``theta`` that are the same on all workers:

    delta = mean_i w_i (theta - x_i),  w_i = 1, or n times worker i's share of the examples
    v <- momentum v + delta
    theta <- theta - lr (delta + momentum v)        (Nesterov; heavy ball: theta - lr v)
    x_i <- theta

``period`` counts inner optimizer steps between exchanges; some implementations take one step more.
The state of the inner optimizer stays on its worker. Evaluation uses ``theta``. A shorter last
period also ends with an outer step. With ``lr = 1`` and ``momentum = 0`` this is local SGD. With
heavy-ball momentum it is SlowMo over local SGD with a constant learning rate. With ``restart``, v
is reset to zero after every ``restart`` outer steps (outer-momentum restarting, arXiv 2605.28585).

With ``overlap``, the all-reduce takes place during the next period: `overlapped_diloco`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.overlapped_diloco import run_overlapped
from sgp_runner.core.outer import check_outer, outer_state, outer_step
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DiLoCo(Algorithm):
    """Local steps and an outer step along their mean change.

    period: inner steps between outer steps, H; 500 in the first paper, 30 in the scaling-laws paper
    lr: outer learning rate
    momentum: outer momentum
    nesterov: true: Nesterov's outer momentum; false: heavy-ball momentum
    restart: outer steps after which the outer momentum is reset to zero; null: never
    weights: weights of the workers in the mean: uniform, or examples (proportional to the number of
        examples in a worker's shard)
    overlap: none, or an all-reduce that takes place during the next period: delayed (its mean is
        applied a period late) or eager (a worker applies its own share at once)
    """

    period: int = 30
    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    restart: int | None = None
    weights: Literal["uniform", "examples"] = "uniform"
    overlap: Literal["none", "delayed", "eager"] = "none"
    title: ClassVar[str] = "DiLoCo"
    source: ClassVar[str] = "douillard2023"

    def __post_init__(self) -> None:
        check_outer(self)
        if self.restart is not None:
            check_least(1, "algo", self, "restart")
            if self.overlap != "none":
                raise ConfigError(
                    "algo.restart", "overlapped outer steps cannot restart: leave it null."
                )

    def warning(self, steps: int, epochs: float) -> str | None:
        if steps >= self.period:
            return None
        period = f"algo.period={self.period}"
        return f"DiLoCo makes one outer step in {steps}: {period} is longer than the run."

    async def run(self, worker: Worker) -> None:
        x, (theta, v) = worker.params, outer_state(worker)
        outer, eager = (self.lr, self.momentum, self.nesterov), self.overlap == "eager"
        if self.overlap != "none":
            return await run_overlapped(worker, self.period, self.change, outer, eager)
        for k in worker.steps():
            await worker.descend()
            if (k + 1) % self.period == 0 or worker.done:
                delta = await worker.comm.all_reduce(self.change(worker, theta))
                outer_step(theta, v, delta, *outer)
                x.copy_(theta)
                if self.restart and (k + 1) // self.period % self.restart == 0:
                    v.zero_()

    def change(self, worker: Worker, theta: Tensor) -> Tensor:
        """Return a worker's ``theta - x`` [D] times the worker's weight."""
        change = theta - worker.params
        return change.mul_(worker.examples) if self.weights == "examples" else change
