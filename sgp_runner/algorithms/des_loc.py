"""DES-LOC (Iacob et al. 2025): local Adam with a separate averaging period for each state.

    x_i <- x_i - d_i, with the optimizer's moments u_i (of gradients) and v_i (of their squares)
    every period steps:    x_i <- mean x      (also after the last step)
    every period_u steps:  u_i <- mean u
    every period_v steps:  v_i <- mean v

Each worker counts its own steps for the bias correction. The paper averages before a step and this
code after the previous step, which is equivalent. With equal periods this is Local Adam. Momentum
SGD has only u; with period = 1 it is AR-SGD, for any period_u. Adam with all periods 1 is not
AR-SGD, which squares the mean gradient instead of averaging the squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    from torch import Tensor


# Names of the moments in the optimizers' buffers, here and in PyTorch.
FIRST, SECOND = ("mean", "momentum", "exp_avg", "momentum_buffer"), ("square", "exp_avg_sq")


@dataclass(frozen=True)
class DESLOC(Algorithm):
    """Local steps and periodic averages of the parameters and the optimizer's moments.

    period: steps between averages of the parameters
    period_u: steps between averages of the first moment, or of the momentum of SGD; null: 3 period,
        as recommended in the paper
    period_v: steps between averages of the second moment; null: 6 period; Local Adam uses one value
        for all three
    """

    period: int = 32
    period_u: int | None = None
    period_v: int | None = None
    title: ClassVar[str] = "DES-LOC"
    source: ClassVar[str] = "iacob2025"

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "period", "period_u", "period_v")

    def check(self, nodes: int, optim: Optimizer) -> None:
        if optim.name == "sgd" and self.period_v is not None:
            raise ConfigError("algo.period_v", "SGD has no second moment: leave it null.")
        if optim.name == "sgd" and not optim.momentum and self.period_u is not None:
            raise ConfigError("algo.period_u", "SGD without momentum has no state: leave it null.")

    @property
    def periods(self) -> tuple[int, int, int]:
        """The numbers of steps between averages of x, u and v."""
        return self.period, self.period_u or 3 * self.period, self.period_v or 6 * self.period

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, lcm(*self.periods))]

    async def run(self, worker: Worker) -> None:
        period_x, period_u, period_v = self.periods
        for k in worker.steps():
            await worker.descend()
            if (k + 1) % period_x == 0 or worker.done:
                await average(worker, [worker.params])
            if (k + 1) % period_u == 0:
                await average(worker, buffers(worker, FIRST))
            if (k + 1) % period_v == 0:
                await average(worker, buffers(worker, SECOND))


def buffers(worker: Worker, names: Sequence[str]) -> list[Tensor]:
    """Return the optimizer's buffers with one of the ``names``, ignoring the parameter prefix."""
    return [buffer for name, buffer in worker.buffers.items() if name.rpartition(".")[2] in names]


async def average(worker: Worker, tensors: Sequence[Tensor]) -> None:
    """Replace each of ``tensors`` by its mean over all workers."""
    for tensor in tensors:
        tensor.copy_(await worker.comm.all_reduce(tensor.clone()))
