"""Streaming DiLoCo (Douillard et al. 2025, Alg. 2): DiLoCo with overlapped, coded fragments.

The model is cut into P fragments, whose exchanges are spread over a period of H inner steps.
Fragment p is first sent after inner step t = H + p floor(H / P), then every H steps. Its outer step
follows ``delay`` inner steps after each send:

    delta_p = mean_i Q(theta_p - x_i,p)         when it was sent
    outer step on theta_p, as in DiLoCo
    x_i,p <- alpha x_i,p + (1 - alpha) theta_p

With a codec, every worker codes its own difference, and the receivers average the decoded
differences. Simulated time counts this exchange as an all-gather, not as a coded all-reduce. The
paper's listing uses the fragment of H steps ago, which differs between workers before the first
exchange. This code uses ``theta`` instead, as do torchft and MaxText, which both send a fragment
for the first time within the first H steps. With one fragment, no codec, and ``delay`` and
``alpha`` of 0, this is DiLoCo. Evaluation uses ``theta``, each fragment of which dates from its
last outer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sgp_runner.algorithms import Algorithm, MessageLayout
from sgp_runner.core.codecs.casts import Identity
from sgp_runner.core.codecs.codec import Codec
from sgp_runner.core.codecs.coder import Coder
from sgp_runner.core.fragments import Fragment, fragments_of
from sgp_runner.core.outer import check_outer, outer_state, outer_step
from sgp_runner.core.scheduler import Future
from sgp_runner.core.settings import check_range
from sgp_runner.core.worker import Worker
from sgp_runner.topology.graphs import Phase
from sgp_runner.utils.errors import ConfigError, check_least

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FragmentSchedule:
    """The schedule of a fragment: sent after ``first`` inner steps, then every ``period`` steps.

    delay: inner steps between a send and its outer step
    """

    first: int
    period: int
    delay: int

    def sends(self, k: int) -> bool:
        """Return whether the fragment is sent after step ``k``, counted from 0."""
        return k + 1 >= self.first and (k + 1 - self.first) % self.period == 0

    def lands(self, k: int) -> bool:
        """Return whether the outer step of an exchange follows step ``k``."""
        return self.sends(k - self.delay)


@dataclass(frozen=True)
class StreamingDiLoCo(Algorithm):
    """DiLoCo with fragments that are exchanged in turn while the workers compute.

    codec: codes the differences; coding errors are lost
    period: inner steps between two exchanges of a fragment, H
    blocks: number of transformer blocks per fragment
    pattern: strided: block i belongs to fragment i modulo the number of fragments; sequential: a
        fragment consists of consecutive blocks
    fragments: number of fragments of a model without blocks
    delay: inner steps between sending a fragment and its outer step, tau; at most 5 is advised
    alpha: share of its own parameters that a worker keeps at an outer step
    lr: outer learning rate
    momentum: outer momentum
    nesterov: true: Nesterov's outer momentum; false: heavy-ball momentum
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
    source: ClassVar[str] = "douillard2025"
    message_layout: ClassVar[MessageLayout] = "fragments"

    def __post_init__(self) -> None:
        check_outer(self)
        check_least(1, "algo", self, "blocks", "fragments")
        if not 0 <= self.delay < self.period:
            raise ConfigError(
                "algo.delay", f"{self.delay} must be at least 0 and less than algo.period."
            )
        check_range("[0, 1]", "algo", self, "alpha")

    def phases(self, size: int) -> list[Phase]:
        return [(0.0, 2 * self.period + self.delay)]  # the first period sends nothing

    def cycle(self, size: int) -> int:
        return self.period

    async def run(self, worker: Worker) -> None:
        x, (theta, v) = worker.params, outer_state(worker)
        sent: dict[str, Any] = worker.state("sent", dict)  # fragment -> step, exchange in flight
        fragments = self.cut(worker)
        for k in worker.steps():
            await worker.descend()
            for p, (fragment, coder, schedule) in fragments.items():
                if schedule.sends(k):
                    sent[p] = k, await self.send(coder, k, fragment.of(theta - x))
                if p in sent and (schedule.lands(k) or worker.done):
                    delta = await self.receive(coder, *sent.pop(p))
                    with fragment.inside(theta, v, x) as (outer, momentum, local):
                        outer_step(outer, momentum, delta, self.lr, self.momentum, self.nesterov)
                        local.mul_(self.alpha).add_(outer, alpha=1 - self.alpha)

    def cut(self, worker: Worker) -> dict[str, tuple[Fragment, Coder, FragmentSchedule]]:
        """Return the fragments of the model by index, each with its coder and schedule."""
        cut = fragments_of(worker.shapes, self.blocks, self.pattern, self.fragments)
        apart = self.period // len(cut)
        return {
            str(p): (
                fragment,
                Coder(worker, self.codec, shapes=fragment.shapes),
                FragmentSchedule(self.period + p * apart, self.period, self.delay),
            )
            for p, fragment in enumerate(cut)
        }

    async def send(self, coder: Coder, k: int, delta: Tensor) -> Future[Any]:
        """Start an all-reduce of a fragment's differences or, if coded, an all-gather."""
        if isinstance(self.codec, Identity):
            return coder.worker.comm.all_reduce(delta)
        return coder.worker.comm.all_gather(await coder.encode(delta, k))

    async def receive(self, coder: Coder, k: int, exchange: Future[Any]) -> Tensor:
        """Return the mean of the differences that all workers sent in step ``k``."""
        result = await exchange
        return result if isinstance(self.codec, Identity) else await coder.mean_of(result, k)
