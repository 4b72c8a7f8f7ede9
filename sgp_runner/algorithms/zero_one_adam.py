"""0/1 Adam (Lu et al. 2022): 1-bit Adam whose variance is frozen in stages, then local steps.

In step t = 1, 2, ..., before the freeze, with update steps T_v that become less frequent:

    t in T_v:  g = mean g_i;  v <- beta2 v + (1 - beta2) g^2          else:  g = C(g_i)
    m <- beta1 m + (1 - beta1) g;  x <- x - lr (m / (sqrt(v) + eps) + weight decay)

After it, with theta the parameters after the last mean, and L the sum of learning rates since then:

    m_i <- beta1 m_i + (1 - beta1) g_i;  x_i <- x_i - lr m_i / (sqrt(v) + eps)
    every I steps:  m <- C((theta - x_i) (sqrt(v) + eps)) / L
                    theta <- theta - L (m / (sqrt(v) + eps) + weight decay);  x_i <- theta

``C`` is the coded mean of 1-bit Adam; its errors are set to zero at the freeze. This is the order
of the released code. The paper averages sums of lr m_i, and also has local steps before the freeze.
The decay is applied to theta, so that it does not enter m. There is no bias correction. The last
step ends with a mean. In each tensor, sqrt(v) is at least a tenth of its root mean square, since v
is stale and a sign cannot be 0; for the same reason, the released code can mask parameters without
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.quantised import Sign
from sgp_runner.core.codecs.two_phase import check_sign, forget_errors, mean_in_two_phases
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.optim.adam import adam_of, frozen_divisor
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class ZeroOneAdam(Algorithm):
    """Adam with averaged signs, infrequent updates of the variance, and finally local steps.

    codec: codes gradients and steps, with error feedback: sign, sign_l2 or none (exact all-reduces)
    freeze_epochs: epochs before the variance is frozen and local steps begin
    kappa: number of updates of the variance after which the steps between two updates double
    doubling: number of steps, from the freeze on, after which the steps between two means double
    max_period: largest number of steps between means, H
    """

    codec: Codec = field(default=Sign("l1"))
    freeze_epochs: float = 1
    kappa: int = 16
    doubling: int = 32768
    max_period: int = 16
    title: ClassVar[str] = "0/1 Adam"
    source: ClassVar[str] = "lu2022"
    needs_optim: ClassVar[str | None] = "adam"
    if_diverged: ClassVar[Sequence[str]] = ("algo.kappa", "algo.freeze_epochs", "optim.eps")

    def __post_init__(self) -> None:
        check_range("positive", "algo", self, "freeze_epochs")
        check_least(1, "algo", self, "kappa", "doubling", "max_period")
        check_sign(self.codec)

    def check(self, nodes: int, optim: Optimizer) -> None:
        adam_of(optim, self.title)

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 3 * self.kappa), (self.freeze_epochs, self.max_period)]

    def warning(self, steps: int, epochs: float) -> str | None:
        if self.freeze_epochs < epochs:
            return None
        freeze = f"algo.freeze_epochs={self.freeze_epochs:g}"
        return f"{self.title} makes no local steps: {freeze} is not shorter than the run."

    def updates_variance(self, t: int) -> bool:
        """Return whether step ``t``, counted from 1, is in T_v."""
        period, last = 1, self.kappa
        while t > last:
            period *= 2
            last = (last // period + self.kappa) * period
        return t % period == 0

    def period_after(self, steps: int) -> int:
        """Return I, the number of steps between means, ``steps`` steps after the freeze."""
        doublings = min(steps // self.doubling, self.max_period.bit_length())
        return min(1 << doublings, self.max_period)

    async def run(self, worker: Worker) -> None:
        adam, x, shapes = adam_of(worker.optim, self.title), worker.params, worker.shapes
        m, v = worker.buffers["mean"], worker.buffers["square"]
        theta = worker.state("last_mean", x.clone)
        onebit = mean_in_two_phases(worker, self.codec)
        for k in worker.steps():
            if worker.epoch < self.freeze_epochs:
                if self.updates_variance(k + 1):
                    g = adam.prepared(await worker.mean_grad(), x, shapes)
                    v.mul_(adam.beta2).addcmul_(g, g, value=1 - adam.beta2)
                else:
                    g = await onebit(adam.prepared(await worker.grad(), x, shapes))
                m.lerp_(g, 1 - adam.beta1)
                step = m / frozen_divisor(v, adam.eps, shapes)
                x.sub_(adam.decayed(step, x, shapes), alpha=worker.lr)
                continue
            since = worker.increment("steps_since_freeze")
            if not since:
                theta.copy_(x)
                forget_errors(worker)
            m.lerp_(adam.prepared(await worker.grad(), x, shapes), 1 - adam.beta1)
            divisor = frozen_divisor(v, adam.eps, shapes)
            x.sub_(m / divisor, alpha=worker.lr)
            lr_sum = worker.state("lr_sum", float) + worker.lr
            if (k + 1) % self.period_after(since) == 0 or worker.done:
                c = await onebit((theta - x) * divisor)
                if lr_sum:
                    m.copy_(c / lr_sum)
                theta.sub_(adam.decayed(m / divisor, theta, shapes), alpha=lr_sum)
                x.copy_(theta)
                lr_sum = 0.0
            worker.state["lr_sum"] = lr_sum
