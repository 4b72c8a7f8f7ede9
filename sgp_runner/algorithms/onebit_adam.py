"""1-bit Adam (Tang et al. 2021): Adam, then Adam with frozen variance and 1-bit momentum.

    warm-up:  g = mean g_i;  m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
    then:     m <- C(beta1 m + (1 - beta1) g_i)        (v is frozen)
    always:   x <- x - lr (m / (sqrt(v) + eps) + weight decay)

``C`` is a mean over all workers, of signs and scales with error feedback (`SignMean`). The momentum
of the next step starts from this coded mean, which is the same on all workers. The betas, eps, the
decay and the clipping of the gradient are settings of the optimizer, Adam or AdamW. Once v is
frozen, sqrt(v) is in each tensor at least a tenth of its root mean square, since a sign cannot be
0; for the same reason, the released code can mask parameters without gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.quantised import Sign
from sgp_runner.core.codecs.two_phase import check_sign, mean_in_two_phases
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.optim.adam import adam_of, frozen_divisor
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase


@dataclass(frozen=True)
class OneBitAdam(Algorithm):
    """Adam with momentum that is averaged as signs once the variance is frozen.

    codec: codes the momentum, with error feedback: sign, sign_l2 or none (an exact all-reduce)
    warmup_epochs: epochs of Adam with exact means, before the variance is frozen
    bias_correction: whether to divide m by 1 - beta1^t and v by 1 - beta2^t, with t the number of
        steps of the warm-up so far; the authors' code does not
    """

    codec: Codec = field(default=Sign("l2"))
    warmup_epochs: float = 1
    bias_correction: bool = False
    title: ClassVar[str] = "1-bit Adam"
    source: ClassVar[str] = "tang2021"
    needs_optim: ClassVar[str | None] = "adam"
    if_diverged: ClassVar[Sequence[str]] = ("algo.warmup_epochs", "optim.eps")

    def __post_init__(self) -> None:
        check_range("positive", "algo", self, "warmup_epochs")
        check_sign(self.codec)

    def check(self, nodes: int, optim: Optimizer) -> None:
        adam_of(optim, self.title)

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 1), (self.warmup_epochs, 1)]

    def warning(self, steps: int, epochs: float) -> str | None:
        if self.warmup_epochs < epochs:
            return None
        warmup = f"algo.warmup_epochs={self.warmup_epochs:g}"
        return f"{self.title} only warms up: {warmup} is not shorter than the run."

    async def run(self, worker: Worker) -> None:
        adam, x, shapes = adam_of(worker.optim, self.title), worker.params, worker.shapes
        m, v, t = (worker.buffers[name] for name in ("mean", "square", "steps"))
        onebit = mean_in_two_phases(worker, self.codec)
        for _ in worker.steps():
            if warms_up := worker.epoch < self.warmup_epochs:
                g = adam.prepared(await worker.mean_grad(), x, shapes)
                m.lerp_(g, 1 - adam.beta1)
                v.mul_(adam.beta2).addcmul_(g, g, value=1 - adam.beta2)
                t += 1
            else:
                g = adam.prepared(await worker.grad(), x, shapes)
                m.copy_(await onebit(m.lerp(g, 1 - adam.beta1)))
            of_m, of_v = (1 - adam.beta1**t, 1 - adam.beta2**t) if self.bias_correction else (1, 1)
            if warms_up:
                divisor = (v / of_v).sqrt_().add_(adam.eps)
            else:
                divisor = frozen_divisor(v / of_v, adam.eps, shapes)
            step = m / of_m / divisor
            x.sub_(adam.decayed(step, x, shapes), alpha=worker.lr)
