"""SignSGD with majority vote (Bernstein et al. 2018), with momentum: Signum.

    m_i <- beta m_i + (1 - beta) g_i
    x <- x - lr (sign(sum_i sign(m_i)) + weight_decay x)

Workers gather the signs of all momenta, one bit for each number, so a momentum of 0 counts as
positive. Coding takes the time of the codec ``sign``. With an even number of workers a vote may be
equal; such a number stays where it is. The learning rate and the weight decay are settings of the
optimizer, SGD without momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.codecs.packing import pack, unpack
from sgp_runner.core.codecs.quantised import Sign, signs
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.optim.sgd import check_no_momentum
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class SignVote(Algorithm):
    """Steps along the sign that most momenta have.

    beta: decay of the momentum per step
    """

    beta: float = 0.9
    title: ClassVar[str] = "SignSGD with majority vote"
    source: ClassVar[str] = "bernstein2018"
    sgd_defaults: ClassVar[Mapping[str, float]] = {"lr": 1e-4, "momentum": 0.0, "weight_decay": 0.0}

    def __post_init__(self) -> None:
        check_range("[0, 1)", "algo", self, "beta")

    def check(self, nodes: int, optim: Optimizer) -> None:
        check_no_momentum(optim, self.title)

    async def run(self, worker: Worker) -> None:
        x = worker.params
        m = worker.state("momentum", lambda: x.new_zeros(x.shape))
        for _ in worker.steps():
            m.lerp_(await worker.grad(), 1 - self.beta)
            own = pack(m >= 0, 1)
            await worker.code("encode", Sign.name, len(x))
            votes = await worker.comm.all_gather(own)
            await worker.code("decode", Sign.name, len(x) * len(votes), "always")
            x.mul_(1 - worker.lr * worker.optim.weight_decay)
            total = x.new_zeros(x.shape)
            for vote in votes:
                total += signs(unpack(vote, 1, len(x)), x)
            x.sub_(total.sign(), alpha=worker.lr)
