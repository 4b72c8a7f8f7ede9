"""DiLoCo (Douillard et al. 2023, Alg. 1): inner steps of one optimizer, outer steps of another.

Every ``period`` inner steps, with outer parameters ``theta`` that are the same on all workers:

    delta = mean_i w_i (theta - x_i),  w_i = 1, or n times worker i's share of the examples
    v <- momentum v + delta
    theta <- theta - lr (delta + momentum v)        (Nesterov; heavy ball: theta - lr v)
    x_i <- theta

``period`` counts inner optimizer steps between exchanges; some implementations take one step more.
The state of the inner optimizer stays on its worker. Evaluation uses ``theta``. A shorter last
period also ends with an outer step. With ``lr = 1`` and ``momentum = 0`` this is local SGD. With
heavy-ball momentum it is SlowMo over local SGD with a constant learning rate.

With ``overlap``, the all-reduce takes place during the next period, and ``delta`` is (Kale et al.
2025)

    delayed: S, the mean of the last period; 0 in the first
    eager:   S + (own - last) / n, own changes of this and of the last period; theta_i differ

By our definition, a run with ``overlap`` ends by applying the mean in flight. For delayed this is a
last outer step. For eager it is theta_i <- theta_i - lr (S - last / n), and then theta is the mean
of all theta_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import Tensor


def check_outer(algo: object) -> None:
    """Raise ConfigError for invalid settings of an outer optimizer."""
    check_least(1, "algo", algo, "period")
    check_range("positive", "algo", algo, "lr")
    check_range("[0, 1)", "algo", algo, "momentum")


def outer_state(worker: Worker) -> tuple[Tensor, Tensor]:
    """Return the outer parameters [D] and the outer momentum [D] in a worker's state."""
    x = worker.params
    momentum = worker.state("outer_momentum", lambda: x.new_zeros(x.shape))
    return worker.state("outer", x.clone), momentum


def outer_step(
    theta: Tensor, v: Tensor, delta: Tensor, lr: float, momentum: float, nesterov: bool
) -> None:
    """Update ``theta`` and its momentum ``v`` in place with the outer gradient ``delta`` [n]."""
    v.mul_(momentum).add_(delta)
    theta.sub_(delta.add(v, alpha=momentum) if nesterov else v, alpha=lr)


@dataclass(frozen=True)
class DiLoCo(Algorithm):
    """Local steps, and an outer step along their mean change.

    period: inner steps between outer steps, H; 500 in the first paper, 30 in the scaling-laws paper
    lr: outer learning rate
    momentum: outer momentum
    nesterov: true: Nesterov's outer momentum; false: heavy-ball momentum
    weights: weights of the workers in the mean: uniform, or examples (proportional to the number of
        examples in a worker's shard)
    overlap: none, or an all-reduce that takes place during the next period: delayed (its mean is
        applied a period late) or eager (a worker applies its own share at once)
    """

    period: int = 30
    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    weights: Literal["uniform", "examples"] = "uniform"
    overlap: Literal["none", "delayed", "eager"] = "none"
    title: ClassVar[str] = "DiLoCo"
    source: ClassVar[str] = "douillard2023"

    def __post_init__(self) -> None:
        check_outer(self)

    def warning(self, steps: int, epochs: float) -> str | None:
        if steps >= self.period:
            return None
        period = f"algo.period={self.period}"
        return f"DiLoCo makes one outer step in {steps}: {period} is longer than the run."

    async def run(self, worker: Worker) -> None:
        x = worker.params
        theta, v = outer_state(worker)
        for k in worker.steps():
            await worker.descend()
            if (k + 1) % self.period == 0 or worker.done:
                delta = await self.outer_gradient(worker, self.change(worker, theta))
                outer_step(theta, v, delta, self.lr, self.momentum, self.nesterov)
                x.copy_(theta)
        for mean in worker.state.pop("in_flight", []):
            await self.finish(worker, theta, v, await mean)
            x.copy_(theta)

    async def outer_gradient(self, worker: Worker, own: Tensor) -> Tensor:
        """Return the outer gradient [D] of a period in which this worker changed by ``own``."""
        if self.overlap == "none":
            return await worker.comm.all_reduce(own)
        in_flight: list[Any] = worker.state("in_flight", list)
        delta = await in_flight.pop() if in_flight else own.new_zeros(own.shape)
        in_flight.append(worker.comm.all_reduce(own.clone()))
        if self.overlap == "delayed":
            return delta
        last = worker.state("last_change", lambda: own.new_zeros(own.shape))
        delta = delta.add(own - last, alpha=1 / worker.size)
        last.copy_(own)
        return delta

    async def finish(self, worker: Worker, theta: Tensor, v: Tensor, mean: Tensor) -> None:
        """Apply the mean of the last period to ``theta``, in place."""
        if self.overlap == "delayed":
            outer_step(theta, v, mean, self.lr, self.momentum, self.nesterov)
            return
        last = worker.state.pop("last_change")
        theta.sub_(mean.sub(last, alpha=1 / worker.size), alpha=self.lr)
        theta.copy_(await worker.comm.all_reduce(theta.clone()))

    def change(self, worker: Worker, theta: Tensor) -> Tensor:
        """Return ``theta - x`` [D] of a worker times the weight of the worker."""
        change = theta - worker.params
        return change.mul_(worker.examples) if self.weights == "examples" else change
