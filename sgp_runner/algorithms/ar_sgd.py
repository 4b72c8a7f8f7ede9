"""AR-SGD: synchronous SGD with an exact all-reduce every step.

Goyal et al. 2017 is the recipe usually run with it. With a codec every node sends a coded gradient
to all others, and adds what was lost to its next one: error feedback (Karimireddy et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.codecs import Codec, Identity
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.seeding import seed_of

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.worker import Worker


@dataclass(frozen=True)
class ARSGD(Algorithm):
    """Every node takes the same step.

    average: gradients, communication overlapping the backward pass, or parameters after a local
        step: the same for SGD, not for Adam, where it is the baseline of the SlowMo paper's
        Transformer
    codec: of gradients, after the backward pass and with error feedback; none: an exact all-reduce
    """

    average: Literal["gradients", "parameters"] = "gradients"
    codec: Codec = field(default=Identity())
    title: ClassVar[str] = "AR-SGD"

    def __post_init__(self) -> None:
        if self.average == "parameters" and not isinstance(self.codec, Identity):
            raise ConfigError(
                "algo.codec", "only gradients are coded: use algo.average=gradients, or codec=none."
            )

    async def run(self, worker: Worker) -> None:
        x = worker.params
        for k in worker.steps():
            if self.average == "parameters":
                await worker.descend()
                x.copy_(await worker.comm.all_reduce(x.clone()))
            elif isinstance(self.codec, Identity):
                worker.descend(await worker.mean_step())
            else:
                x -= worker.update(await self.mean(worker, k, await worker.grad()))

    async def mean(self, worker: Worker, k: int, g: Tensor) -> Tensor:
        """The mean of all nodes' coded gradients [D]; what is lost is kept for the next step."""
        codec, shapes = self.codec.contraction, worker.shapes
        seed = seed_of(worker.rank, k)
        error = worker.keep("error", lambda: g.new_zeros(g.shape))
        error += g
        message = codec.encode(error, shapes, seed)
        error -= codec.decode(message, shapes, g, seed)
        total = g.new_zeros(g.shape)
        for rank, each in enumerate(await worker.comm.all_gather(message)):
            total += codec.decode(each, shapes, g, seed_of(rank, k))
        return total.div_(worker.size)
