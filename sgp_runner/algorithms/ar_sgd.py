"""AR-SGD: synchronous SGD with an exact all-reduce every step.

Goyal et al. 2017 give the usual training recipe. With a codec, every node sends a coded gradient to
all other nodes and adds the coding error to its next gradient. This is error feedback (Karimireddy
et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.coder import Coder
from sgp_runner.core.worker import Worker
from sgp_runner.utils.errors import ConfigError


@dataclass(frozen=True)
class ARSGD(Algorithm):
    """Synchronous steps that are the same on every node.

    average: gradients (communication overlaps the backward pass), or parameters after a local step.
        Both give the same result for SGD, but not for Adam; the SlowMo paper's baseline for
        Transformers averages parameters
    codec: codes gradients after the backward pass, with error feedback; none: an exact all-reduce
    """

    average: Literal["gradients", "parameters"] = "gradients"
    codec: Codec = field(default=Identity())
    title: ClassVar[str] = "AR-SGD"
    source: ClassVar[str] = "goyal2017"

    def __post_init__(self) -> None:
        if self.average == "parameters" and not isinstance(self.codec, Identity):
            raise ConfigError(
                "algo.codec", "a codec needs gradients: use algo.average=gradients, or codec=none."
            )

    async def run(self, worker: Worker) -> None:
        x, coder = worker.params, Coder(worker, self.codec)
        for k in worker.steps():
            if self.average == "parameters":
                await worker.descend()
                x.copy_(await worker.comm.all_reduce(x.clone()))
            elif isinstance(self.codec, Identity):
                worker.descend(await worker.mean_step())
            else:
                x -= worker.update(await coder.mean(await worker.grad(), k))
