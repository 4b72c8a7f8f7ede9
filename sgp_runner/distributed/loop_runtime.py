"""Runtime of a rank whose gradients come from a training loop outside this package.

The algorithm is the same coroutine as in other runs. It runs until it requests a gradient, and is
suspended while the loop computes one. The algorithm has therefore always begun a step that the loop
may never finish. At the end of training and for checkpoints, it returns to the start of this step:
the step's counts are restored and its messages dropped. An algorithm must therefore leave the
parameters unchanged until it has its gradient.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import torch
from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.cluster.coding_times import Coding, Waits
from sgp_runner.core.budget import OwnBudget
from sgp_runner.core.optim import Horizon
from sgp_runner.core.optim.wrapped import ParameterVector, WrappedOptimizer
from sgp_runner.core.scheduler import Future, RealClock, Scheduler, resolved
from sgp_runner.core.state import State, futures_in
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.rank import connect
from sgp_runner.distributed.world import World
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.waits import waiting_for

T = TypeVar("T")

POLL_SECONDS = 0.001
MAX_STEPS = sys.maxsize  # of a loop that does not say how many it takes


class LoopClock(RealClock):
    """Wall-clock time that counts the messages sent since the start of the step, by receiver."""

    def __init__(self) -> None:
        RealClock.__init__(self)
        self.sent: Counter[int] = Counter()

    def sends(self, dst: int, tag: int, num_bytes: int) -> None:
        self.sent[dst] += 1


class LoopRuntime:
    """The runtime of this process and its worker.

    There are no reference cycles, so all memory is free as soon as the loop drops its averager.

    start: the initial parameters [D]
    model_buffers: buffers of the model, such as BatchNorm's statistics
    steps: number of steps of the loop; None if it may stop at any time
    """

    def __init__(
        self,
        world: World,
        algo: Algorithm,
        optim: WrappedOptimizer,
        vector: ParameterVector,
        start: Tensor,
        model_buffers: list[Tensor],
        steps: int | None,
    ) -> None:
        self.world, self.algo, self.optim, self.vector = world, algo, optim, vector
        self.clock = LoopClock()
        self.scheduler = Scheduler(self.clock, world.in_order)
        scheduler = weakref.proxy(self.scheduler)
        self.clock.describe = lambda: scheduler.waits()  # noqa: PLW0108 - its method is a reference
        self.comm = connect(world, self.scheduler, self.clock)
        self.budget = OwnBudget(MAX_STEPS if steps is None else steps)
        self.worker = Worker(
            rank=world.layout.node_rank,
            size=world.layout.nodes,
            push_sum=append_one(start),
            shapes=vector.shapes,
            comm=self.comm,
            optim=optim,
            budget=self.budget,
            horizon=Horizon(float("inf"), float("inf"), world.layout.nodes, 1),
            steps_per_epoch=float("inf"),
            runtime=weakref.proxy(self),
            model_buffers=model_buffers,
        )
        self.vector.bind(self.worker.params)
        self.wanted: Future[Any] | None = None  # the gradient that the algorithm waits for
        self.in_parts = False  # whether it may come in parts
        self.at_start: State = {}  # counts at the start of the step
        self.version = 0  # of the parameters, at the start of the step
        self.begun = self.ended = False

    # For the training loop.

    def step(self, gradient: Callable[[], list[Tensor]], skips: bool = False) -> None:
        """Give the algorithm its next gradient, and run it until it requests another.

        skips: whether the gradient is not finite; it then counts as zero and no local step is taken
        """
        if not self.begun:
            self.begin()
        if self.wanted is None:
            raise RuntimeError(
                f"the averager has taken all its {self.worker.steps_taken} steps"
                if self.ended or self.budget.spent
                else "the averager was stopped by an error"
            )
        wanted, self.wanted = self.wanted, None
        parts = gradient()
        for part in parts if skips else ():
            part.zero_()
        self.optim.skips = skips and self.in_parts
        self.scheduler.resolve(wanted, parts if self.in_parts else torch.cat(parts))
        self.proceed()

    def begin(self) -> None:
        self.begun = True
        self.worker.buffers.update(self.optim.buffers(self.worker.params))
        name = f"rank {self.worker.rank}"
        self.scheduler.spawn(self.algo.run(self.worker), name, self.explained)
        self.proceed()

    def explained(self, error: BaseException) -> BaseException:
        return error if isinstance(error, ConfigError) else self.worker.explained(error)

    def proceed(self) -> None:
        """Run until the algorithm waits for a gradient or has finished."""
        self.scheduler.run_until(lambda: self.wanted is not None)
        if self.wanted is None:
            self.vector.bind(self.worker.params)

    def finish(self) -> None:
        """End the algorithm after the last complete step, and receive all messages."""
        self.ended = True
        if self.wanted is not None:
            self.wanted = None
            self.scheduler.close()
            self.restore(self.at_start)
            self.budget.total = self.budget.taken
            self.begin()
        self.wait_for_collectives()
        self.comm.transport.quiesce()
        with waiting_for("waits for the last messages of all ranks"):
            self.comm.close()  # a step that was not finished leaves messages unread

    def state_dict(self) -> State:
        """Return the state at the start of the step; all ranks call this together."""
        sent = self.quiesce()
        self.wait_for_collectives()
        state = self.worker.state_dict() | {"buffers": {}}  # they are the optimizer's state
        if self.wanted is None:
            return state
        comm = {
            "mailbox": without_last(state["comm"]["mailbox"], sent),
            "collectives": self.at_start["collectives"],
        }
        return {**state, **self.at_start, "comm": comm}

    def quiesce(self) -> dict[int, int]:
        """Receive all messages; return how many each rank has sent to this one in this step."""
        if self.ended:
            return {}
        self.comm.transport.quiesce()
        rank, mailbox = str(self.worker.rank), self.comm.mailbox
        sent = {str(dst): count for dst, count in self.clock.sent.items()}
        with waiting_for("waits for the messages of all ranks"):
            while True:
                counts = self.world.gather((self.comm.num_sent, mailbox.num_delivered, sent))
                if sum(pair[0] for pair in counts) == sum(pair[1] for pair in counts):
                    layout = self.world.layout
                    peers = counts[layout.device :: layout.devices]
                    return {src: of_rank.get(rank, 0) for src, (*_, of_rank) in enumerate(peers)}
                time.sleep(POLL_SECONDS)
                self.clock.catch_up()

    def wait_for_collectives(self) -> None:
        for future in futures_in(self.worker.state):
            while not future.done:
                self.clock.advance()

    def counts(self) -> State:
        """Return the counters that a step changes before its gradient."""
        progress = self.worker.progress
        return {
            "step": progress.step,
            "steps_taken": progress.steps_taken,
            "gradients": progress.gradients,
            "taken": self.budget.taken,
            "num_bytes_sent": self.comm.num_bytes_sent,
            "collectives": self.comm.collectives,
        }

    def restore(self, counts: State) -> None:
        progress = self.worker.progress
        progress.step, progress.steps_taken = counts["step"], counts["steps_taken"]
        progress.gradients, self.budget.taken = counts["gradients"], counts["taken"]

    # For the algorithm.

    def grad(self, worker: Worker, at: Tensor, allow_parts: bool = False) -> Future[Any]:
        if worker.push_sum._version != self.version:
            raise ConfigError(
                "algo",
                f"{self.algo.title} with these settings changes the parameters before it has the "
                "gradient, so a training loop cannot stop between steps: use another variant.",
            )
        worker.progress.gradients += 1
        self.comm.transport.flush()
        self.vector.bind(at)
        self.wanted, self.in_parts = Future(("its gradient",)), allow_parts
        return self.wanted

    async def mean_grad(self, worker: Worker, allow_parts: bool = False) -> Tensor:
        return await self.comm.all_reduce(await self.grad(worker, worker.params))

    def abandon(self, worker: Worker) -> None:
        raise self.unsupported("abandons gradients")

    def spawn(self, worker: Worker, coroutine: Coroutine[Future[Any], None, T]) -> Future[T]:
        coroutine.close()
        raise self.unsupported("runs a second activity")

    def sleep(self, worker: Worker, number: int, seconds: float) -> Awaitable[None]:
        raise self.unsupported("waits for a time")

    def code(
        self, worker: Worker, what: Coding, codec: str, numbers: float, waits: Waits
    ) -> Future[None]:
        """Do nothing, because real coding has already taken its time."""
        return resolved(None)

    def unsupported(self, what: str) -> ConfigError:
        return ConfigError(
            "algo", f"{self.algo.title} {what} while the loop computes: run it with sgp-run."
        )

    def now(self) -> float:
        return self.clock.now

    def start_of_step(self, worker: Worker) -> None:
        self.at_start, self.version = self.counts(), worker.push_sum._version
        self.clock.sent.clear()

    def end_of_step(self, worker: Worker) -> None:
        self.comm.transport.end_of_step()
        worker.progress.observed.clear()


def append_one(start: Tensor) -> Tensor:
    """Return the vector [D + 1] of the parameters and a push-sum weight of 1."""
    vector = start.new_ones(start.numel() + 1)
    vector[:-1] = start
    return vector


def without_last(
    messages: list[tuple[int, int, Tensor]], counts: dict[int, int]
) -> list[tuple[int, int, Tensor]]:
    """Return ``messages`` (sender, tag, tensor) without the last few from each sender."""
    left, others = dict(counts), []
    for message in reversed(messages):
        if left[message[0]]:
            left[message[0]] -= 1
        else:
            others.append(message)
    return others[::-1]
