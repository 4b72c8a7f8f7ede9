"""Streaming DiLoCo (Douillard et al. 2025, Alg. 2): DiLoCo by fragments, overlapped and coded.

The model is cut into P fragments, whose exchanges are spread over a period of H inner steps.
Fragment p is sent after the inner steps t = H + p floor(H / P), and every H steps from there; its
outer step lands ``delay`` inner steps later:

    delta_p = mean_i Q(theta_p - x_i,p)         as it was sent
    outer step on theta_p, as in DiLoCo
    x_i,p <- alpha x_i,p + (1 - alpha) theta_p

With a codec every worker codes its own difference before any sum, and the receivers add up the
decoded ones: an all-gather, and counted as one, not as a coded all-reduce. The
listing refers to the fragment H steps ago, which differs between workers before a first exchange;
``theta`` is used here, as torchft and MaxText do, which send first within the first H steps. One
fragment without delay, codec and ``alpha`` is DiLoCo. The model that is evaluated is ``theta``,
each fragment of its own age.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.algorithms.codecs import Codec, Identity
from sgp_runner.algorithms.diloco import check_outer, outer_step
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.seeding import seed_of

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.optim import Shapes
    from sgp_runner.core.scheduler import Future
    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Phase

BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")  # in the name of a tensor of a transformer block


@dataclass(frozen=True)
class Fragment:
    """Some of the model's tensors.

    spans: their places in the parameters [D]
    shapes: their shapes, by name
    """

    spans: Sequence[slice]
    shapes: Shapes

    def of(self, x: Tensor) -> Tensor:
        """The fragment's part of ``x`` [D], a copy [n]."""
        import torch

        return torch.cat([x[span] for span in self.spans])

    def write(self, x: Tensor, part: Tensor) -> None:
        """Put ``part`` [n] into ``x`` [D]."""
        sizes = [span.stop - span.start for span in self.spans]
        for span, values in zip(self.spans, part.split_with_sizes(sizes), strict=True):
            x[span] = values


def cut(shapes: Shapes, blocks: int, pattern: str, count: int) -> list[Fragment]:
    """The fragments of a model.

    Those of transformer blocks have ``blocks`` each, and what belongs to no block is one more. A
    model without blocks is cut into ``count`` runs of tensors of nearly equal size.
    """
    numbers = [found and int(found[1]) for found in map(BLOCK.search, shapes)]
    last = max((number for number in numbers if number is not None), default=-1)
    ends = list(accumulate(map(prod, shapes.values())))
    if last < 0:
        owners = [min(count - 1, (end - 1) * count // ends[-1]) for end in ends]
    else:
        groups = -(-(last + 1) // blocks)
        owners = [
            groups if n is None else n % groups if pattern == "strided" else n // blocks
            for n in numbers
        ]
    tensors = list(zip(owners, shapes.items(), ends, strict=True))
    return [
        Fragment(
            [slice(end - prod(shape), end) for of, (_, shape), end in tensors if of == owner],
            {name: shape for of, (name, shape), _ in tensors if of == owner},
        )
        for owner in sorted(set(owners))
    ]


@dataclass(frozen=True)
class StreamingDiLoCo(Algorithm):
    """DiLoCo whose fragments are exchanged one after the other while the workers compute.

    codec: of what a worker sends; its losses are not sent later
    period: inner steps between two exchanges of a fragment, H
    blocks: transformer blocks of a fragment
    pattern: strided: block i belongs to fragment i modulo their number; sequential: neighbours
    fragments: of a model without blocks
    delay: inner steps between sending a fragment and its outer step, tau; at most 5 is advised
    alpha: share of its own parameters that a worker keeps at an outer step
    lr: outer learning rate
    momentum: outer momentum
    nesterov: false: heavy ball
    """

    codec: Codec
    period: int = 30
    blocks: int = 3
    pattern: Literal["strided", "sequential"] = "strided"
    fragments: int = 3
    delay: int = 1
    alpha: float = 0.5
    lr: float = 0.4
    momentum: float = 0.9
    nesterov: bool = True
    title: ClassVar[str] = "Streaming DiLoCo"
    sends: ClassVar[Literal["model", "fragments", "chunks"]] = "fragments"

    def __post_init__(self) -> None:
        check_outer(self)
        check_least(1, "algo", self, "blocks", "fragments")
        if not 0 <= self.delay < self.period:
            raise ConfigError(
                "algo.delay", f"{self.delay} must be at least 0 and less than algo.period."
            )
        if not 0 <= self.alpha <= 1:
            raise ConfigError("algo.alpha", f"{self.alpha} must be between 0 and 1.")

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 2 * self.period + self.delay)]  # the first period sends nothing

    async def run(self, worker: Worker) -> None:
        x = worker.params
        theta = worker.keep("outer", x.clone)
        v = worker.keep("outer_momentum", lambda: x.new_zeros(x.shape))
        sent: dict[str, Any] = worker.keep("sent", dict)  # fragment -> step, exchange under way
        fragments = cut(worker.shapes, self.blocks, self.pattern, self.fragments)
        for k in worker.steps():
            await worker.descend()
            for p, fragment in enumerate(fragments):
                steps = k + 1 - p * (self.period // len(fragments))  # since its first turn
                if k + 1 >= self.period and steps % self.period == 0:
                    sent[str(p)] = k, self.send(worker, fragment, fragment.of(theta - x))
                if str(p) in sent and ((steps - self.delay) % self.period == 0 or worker.done):
                    delta = await self.mean(worker, fragment, *sent.pop(str(p)))
                    outer, momentum, own = (fragment.of(each) for each in (theta, v, x))
                    outer_step(self, outer, momentum, delta)
                    own.mul_(self.alpha).add_(outer, alpha=1 - self.alpha)
                    for whole, part in ((theta, outer), (v, momentum), (x, own)):
                        fragment.write(whole, part)

    def send(self, worker: Worker, fragment: Fragment, delta: Tensor) -> Future[Any]:
        """Start the exchange of a fragment, an all-gather if its differences are coded."""
        if isinstance(self.codec, Identity):
            return worker.comm.all_reduce(delta)
        seed = seed_of(worker.rank, worker.step)
        return worker.comm.all_gather(self.codec.encode(delta, fragment.shapes, seed))

    async def mean(
        self, worker: Worker, fragment: Fragment, k: int, exchange: Future[Any]
    ) -> Tensor:
        """The mean of all workers' differences, sent in step ``k``."""
        result = await exchange
        if isinstance(self.codec, Identity):
            mean: Tensor = result
            return mean
        total = worker.params.new_zeros(sum(map(prod, fragment.shapes.values())))
        for rank, message in enumerate(result):
            total += self.codec.decode(message, fragment.shapes, total, seed_of(rank, k))
        return total.div_(worker.size)
