"""tau-OSGP, Overlap SGP (Assran et al. 2019, Alg. 2): messages travel during ``tau`` gradients.

A message sent in step ``k`` is folded in before the gradient of step ``k + 1 + tau`` at the latest,
so ``tau = 0`` is SGP (layout ``paper``). Mass in flight makes ``w != 1`` even on regular graphs, so
the model must be de-biased.

Layouts. ``paper``: fold in, gradient, local step, send. ``released``: fold in, send, gradient at
the kept share, local step; with ``y`` the value after receipt and messages one step late, ``y' = P
y - d(y)``. There ``tau = 0`` is the authors' 1-OSGP (``synch_freq=0``), whose messages travel
during one gradient, and each further step of ``tau`` allows one more. ``released_2019``: as
released, but the local step is scaled by the kept weight as well, which for one peer halves
learning rate and weight decay on the network mean; the version behind the paper's tables did this.

Differences from the listing of Alg. 2: every step waits for the messages that are ``tau`` steps
late, where the listing waits when a counter reaches ``tau`` and then resets it (the same where
messages are prompt); messages are sent every ``interval`` steps, 1 by default, where the listing
sends every ``tau`` steps; and a message from a peer that is ahead is folded in once this worker has
reached the step it was sent in, where the listing folds in whatever has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.push_sum import descend, fold, push, to_model, to_numerator
from sgp_runner.topology.verify import verify
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.optim import Optimizer, Updates
    from sgp_runner.core.worker import Worker
    from sgp_runner.topology.graphs import Phase, Topology


@dataclass(frozen=True)
class OSGP(Algorithm):
    """SGP with messages that may be late.

    topology: any graph
    tau: steps a message may be late before the worker waits for it; 0 is SGP (with layout=released:
        the authors' 1-OSGP)
    interval: steps between sends (the paper's listing ties it to tau)
    layout: order of receive, gradient, step and send: paper | released | released_2019, see the
        module
    push_sum_weight: false is the biased ablation: the same messages, but the model is never divided
        by the weight
    """

    topology: Topology
    tau: int = 1
    interval: int = 1
    layout: Literal["paper", "released", "released_2019"] = "paper"
    push_sum_weight: bool = True
    title: ClassVar[str] = "OSGP"

    def __post_init__(self) -> None:
        if self.tau < 0:
            raise ConfigError("algo.tau", f"{self.tau} must be 0 or more steps.")
        if self.interval < 1:
            raise ConfigError("algo.interval", f"{self.interval} must be at least 1 step.")

    def check(self, nodes: int, optim: Optimizer) -> None:
        verify(self.topology, nodes, weighted=True)

    def phases(self, size: int) -> list[Phase]:
        return [(epoch, self.interval * steps) for epoch, steps in self.topology.phases(size)]

    async def run(self, worker: Worker) -> None:
        x = worker.push_sum  # [D + 1]: z (worker.params) at rest, x in between; w last
        # (step, peer) of messages sent to this worker and not folded in yet.
        expected: list[tuple[int, int]] = worker.keep("expected", list)
        for k in worker.steps():
            if self.layout != "paper":
                to_numerator(x)
                self.push(worker, k, x, expected)
                to_model(x)
            step = await worker.local_step()  # d, at z; messages travel meanwhile
            if self.layout == "released_2019":
                for where, d in step:
                    x[where].sub_(d)
                to_numerator(x)
            elif self.layout == "released":
                descend(x, step)
            else:
                self.push(worker, k, x, expected, step)
            await self.fold(worker, x, expected, late=k - self.tau)
        to_numerator(x)
        await self.fold(worker, x, expected, late=worker.step)

    def push(
        self,
        worker: Worker,
        k: int,
        x: Tensor,
        expected: list[tuple[int, int]],
        updates: Updates | None = None,
    ) -> None:
        """Subtract ``updates``, start sending the out-shares of ``(x, w)`` and keep the own one."""
        if k % self.interval:
            if updates is not None:
                descend(x, updates)
            return
        graph = self.topology.at(worker.epoch)
        send = k // self.interval  # counts sends: by ``k`` an even interval would skip hops
        push(worker, graph, send, x, updates)
        if not self.push_sum_weight:
            x[-1] = 1
        expected.extend((k, j) for j in graph.in_peers(worker.rank, worker.size, send))

    async def fold(
        self, worker: Worker, x: Tensor, expected: list[tuple[int, int]], late: int
    ) -> None:
        """Fold in all arrived messages; wait only for those sent in step ``late`` or before.

        ``x`` is the model again afterwards.
        """
        messages: list[Tensor] = []
        pending: list[tuple[int, int]] = []
        silent: set[int] = set()  # peers whose older message is still on its way
        for sent, j in expected:
            message = None
            if sent <= late:
                while messages:  # nothing is held back while this waits
                    x += messages.pop(0)
                message = await worker.comm.recv(j)
            elif j not in silent:
                message = worker.comm.poll(j)
            if message is None:
                silent.add(j)
                pending.append((sent, j))
            else:
                messages.append(message)
                worker.observe("staleness", worker.step - sent)
        expected[:] = pending
        fold(x, messages, self.push_sum_weight)
