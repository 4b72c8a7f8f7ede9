"""DeMo (Peng et al. 2024): workers exchange the fast components of the momentum and keep the rest.

In every step, for each tensor, with C the orthonormal DCT of its chunks:

    m <- beta m + lr g;  q = the k largest of |C m| in each chunk;  m <- m - C^T q
    x <- (1 - lr weight_decay) x - lr sign(C^T mean q)

The mean of a coefficient is over the workers that sent it. The learning rate and the weight decay
are settings of the optimizer, SGD without momentum. `CosineTopK` defines the chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.algorithms import Algorithm, MessageLayout
from sgp_runner.core.codecs.coder import Coder
from sgp_runner.core.codecs.cosine import CosineTopK
from sgp_runner.core.optim import Optimizer, Shapes
from sgp_runner.core.optim.sgd import check_no_momentum
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import check_least


@dataclass(frozen=True)
class DeMo(Algorithm):
    """Sign steps along the exchanged part of the momentum.

    k: number of coefficients sent per chunk
    side: largest side of a chunk
    beta: decay of the momentum per step
    """

    k: int = 32
    side: int = 64
    beta: float = 0.999
    title: ClassVar[str] = "DeMo"
    source: ClassVar[str] = "peng2024"
    message_layout: ClassVar[MessageLayout] = "chunks"
    sgd_defaults: ClassVar[Mapping[str, float]] = {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0}

    def __post_init__(self) -> None:
        check_least(1, "algo", self, "k", "side")
        check_range("[0, 1)", "algo", self, "beta")

    def check(self, nodes: int, optim: Optimizer) -> None:
        check_no_momentum(optim, self.title)

    @property
    def codec(self) -> CosineTopK:
        return CosineTopK(self.k, self.side)

    def message_lengths(self, shapes: Shapes) -> list[int]:
        return self.codec.message_lengths(shapes)

    async def run(self, worker: Worker) -> None:
        x = worker.params
        coder = Coder(worker, self.codec, "momentum", decay=self.beta)
        for k in worker.steps():
            g = await worker.grad()
            x.mul_(1 - worker.lr * worker.optim.weight_decay)
            q = await coder.mean(g.mul_(worker.lr), k, divide_by="senders")
            x.sub_(q.sign(), alpha=worker.lr)
