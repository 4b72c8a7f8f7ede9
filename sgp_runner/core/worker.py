"""The environment of an algorithm: one worker, the same in simulated and in real runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sgp_runner.cluster.coding_times import Coding, Waits
from sgp_runner.core.budget import Budget
from sgp_runner.core.comm import Comm
from sgp_runner.core.flat import Gradient
from sgp_runner.core.optim import (
    Horizon,
    LocalStep,
    Optimizer,
    Shapes,
    local_step,
    lr_at,
    no_step,
)
from sgp_runner.core.parts import PartShapes
from sgp_runner.core.scheduler import Future, resolved
from sgp_runner.core.state import NamedState, State, packed, unpacked, with_memory
from sgp_runner.topology.graphs import Exchange, Topology
from sgp_runner.utils.errors import SPEAKING, Diverged, NotFinite, RankFailed
from sgp_runner.utils.user_code import format_error

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")
MAX_CHECKS = 1000  # postponed ones, of a process that records nothing


class Runtime(Protocol):
    """The interface that simulated and real runs implement for their workers."""

    def grad(self, worker: Worker, at: Tensor, allow_parts: bool = False) -> Future[Any]:
        """Start computing a gradient, which may be a list of parts if ``allow_parts``."""

    def mean_grad(self, worker: Worker, allow_parts: bool = False) -> Awaitable[Any]: ...
    def abandon(self, worker: Worker) -> None: ...
    def spawn(self, worker: Worker, coroutine: Coroutine[Future[Any], None, T]) -> Awaitable[T]: ...
    def sleep(self, worker: Worker, number: int, seconds: float) -> Awaitable[None]: ...
    def code(
        self, worker: Worker, what: Coding, codec: str, numbers: float, waits: Waits
    ) -> Awaitable[None]: ...
    def now(self) -> float: ...

    def start_of_step(self, worker: Worker) -> None:
        """Save a checkpoint if due; the worker is at rest and no other activity is in a step."""

    def end_of_step(self, worker: Worker) -> None:
        """Record and evaluate if due, in no simulated time."""


@dataclass(slots=True)
class Progress:
    """The progress of a worker, shared by all views of it (`Worker.limit`)."""

    # Number of the present step; asynchronous algorithms count the gradients of all workers.
    step: int = -1
    gradients: int = 0  # gradients started; decides the next batch
    steps_taken: int = 0  # steps taken from its budget
    loss: float | Tensor = float("nan")  # of the latest gradient's batch
    observed: dict[str, list[float]] = field(default_factory=dict)  # since the last record
    checks: list[tuple[int, Callable[[], None]]] = field(default_factory=list)  # step, postponed


@dataclass(eq=False, slots=True)
class Worker:
    """One worker. ``D`` is the number of parameters, or of those in this device's part.

    rank, size: rank of this worker and number of gradient workers; a parameter server has ``rank >=
        size``.
    push_sum: [D + 1], the parameters and, last, a push-sum weight that starts at 1.
    params: [D], the model's parameters, a view of ``push_sum``.
    buffers: state of the optimizer. model_buffers: BatchNorm's statistics.
    shapes: shapes of the model's parameter tensors, by name, in their order in ``params``.
    steps_per_epoch: length of an epoch, in the unit of ``step``.
    examples: number of examples in this worker's shard, relative to the mean of all shards.
    state: named state, which outlives the coroutines: `state("momentum", make)`.
    has_gradients: False in a timing study, where all gradients are zero.
    lr_follows_own_steps: whether the learning rate depends on the number of gradients of this
        worker, times ``size``, instead of ``step``.
    """

    rank: int
    size: int
    push_sum: Tensor
    shapes: Shapes
    comm: Comm
    optim: Optimizer
    budget: Budget
    horizon: Horizon
    steps_per_epoch: float
    runtime: Runtime
    progress: Progress = field(default_factory=Progress)
    state: NamedState = field(default_factory=NamedState)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    model_buffers: list[Tensor] = field(default_factory=list)
    until: int | None = None
    examples: float = 1.0
    has_gradients: bool = True
    lr_follows_own_steps: bool = False
    params: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.params = self.push_sum[:-1]

    @property
    def model(self) -> Tensor:
        """The parameters [D] to evaluate, gathered from all devices that hold a part of them."""
        return self.gathered(self.own_model)

    @property
    def own_model(self) -> Tensor:
        """This device's part of `model`: the state ``outer`` if it exists, else ``params``."""
        outer: Tensor = self.state.get("outer", self.params)
        return outer

    def gathered(self, part: Tensor) -> Tensor:
        """Return the vector [D], given this device's ``part`` of it or all of it."""
        shapes = self.shapes
        return shapes.devices.gathered(part) if isinstance(shapes, PartShapes) else part

    @property
    def push_sum_weight(self) -> float:
        """The push-sum weight; 1 in a timing study whose vectors have no values."""
        return 1.0 if self.push_sum.is_meta else float(self.push_sum[-1])

    @property
    def layers(self) -> tuple[int, ...]:
        """The number of entries of each parameter tensor; their sum is ``D``."""
        return tuple(map(prod, self.shapes.values()))

    @property
    def is_server(self) -> bool:
        return self.rank >= self.size

    @property
    def step(self) -> int:
        return self.progress.step

    @property
    def steps_taken(self) -> int:
        return self.progress.steps_taken

    @property
    def epoch(self) -> float:
        return max(self.progress.step, 0) / self.steps_per_epoch

    @property
    def lr(self) -> float:
        step = (self.progress.gradients - 1) * self.size if self.lr_follows_own_steps else self.step
        return self.lr_at(max(step, 0))

    def lr_at(self, step: int) -> float:
        return lr_at(self.optim, step / self.steps_per_epoch, self.horizon)

    @property
    def now(self) -> float:
        """Seconds since the start on the run's clock."""
        return self.runtime.now()

    @property
    def done(self) -> bool:
        """Whether this view has no steps left."""
        return self.budget.spent or (self.until is not None and self.steps_taken >= self.until)

    def steps(self) -> Iterator[int]:
        """Iterate over step numbers until the budget or this view's limit is exhausted.

        The worker is at rest between two steps. A resumed run starts `Algorithm.run` again at such
        a point, with the saved named state (`state`, `increment`).
        """
        progress, runtime, budget, until = self.progress, self.runtime, self.budget, self.until
        while until is None or progress.steps_taken < until:
            runtime.start_of_step(self)
            step = budget.next_step()
            if step is None:
                return
            progress.step = step
            progress.steps_taken += 1
            yield step
            runtime.end_of_step(self)

    def limit(self, steps: int) -> Worker:
        """Return a view of this worker that is limited to ``steps`` more steps."""
        until = self.steps_taken + steps
        return replace(self, until=until if self.until is None else min(self.until, until))

    def periods(self, length: int, start: int) -> Iterator[Worker]:
        """Yield a view of this worker for each period of ``length`` steps from step ``start``.

        A resumed run re-enters its last period, even if only the work after its steps remains.
        """
        left = length - (self.steps_taken - start) % length
        while left < length or not self.done:
            yield self.limit(left)
            left = length

    def peers(self, topology: Topology, k: int) -> Exchange:
        """Return the peers of this worker in step ``k`` of the current epoch's graph.

        ``weights`` are the shares that the peers in ``outgoing`` get, in their order, and this
        worker keeps the rest; None means equal shares for all of them and this worker.
        """
        graph, at = topology.at(self.epoch), (self.rank, self.size, k)
        return Exchange(graph.out_peers(*at), graph.in_peers(*at), graph.weights(*at))

    def grad(self, at: Tensor | None = None) -> Awaitable[Tensor]:
        """Return the gradient [D] on the next local batch, at ``at`` or the current parameters.

        The parameters must not change until the gradient is complete.
        """
        return self.runtime.grad(self, self.params if at is None else at)

    def abandon(self) -> None:
        """Abandon the gradient in progress, if any; its awaiter gets None immediately.

        Its batch is not used again. Allowed only for a `grad` at a copy of the parameters. A real
        rank finishes the computation before it starts the next one.
        """
        self.runtime.abandon(self)

    def mean_grad(self) -> Awaitable[Tensor]:
        """Return the mean gradient [D] over all workers at the current parameters.

        Communication overlaps the backward pass.
        """
        return self.runtime.mean_grad(self)

    def update(self, g: Tensor) -> Tensor:
        """Return the local optimizer's step to subtract [D], in the memory of ``g``."""
        if not self.has_gradients:
            return g
        return self.optim.direction(g, self.params, self.buffers, self.lr, self.shapes)

    def local_step(self) -> Awaitable[LocalStep]:
        """Return the optimizer's step with `grad` at the current parameters.

        It is computed when it is taken, piece by piece: `sgp_runner.core.push_sum.descend`.
        """
        future = self.runtime.grad(self, self.params, True)
        future.finish = self.step_along
        return future

    async def mean_step(self) -> LocalStep:
        """Return the optimizer's step with `mean_grad`, like `local_step`."""
        return self.step_along(await self.runtime.mean_grad(self, True))

    def step_along(self, g: Gradient) -> LocalStep:
        if not self.has_gradients:
            return no_step(self.params)
        return local_step(self.optim, g, self.params, self.buffers, self.lr, self.shapes)

    def descend(self, step: LocalStep | None = None) -> Awaitable[None]:
        """Take a `local_step` from the current parameters, in place.

        step: another step to take instead, before this method returns
        """
        if step is None:
            future = self.runtime.grad(self, self.params, True)
            future.finish = lambda g: self.take(self.step_along(g))
            return future
        self.take(step)
        return resolved(None)

    def take(self, step: LocalStep) -> None:
        """Take ``step`` from the current parameters, in place."""
        if not self.params.is_meta:  # a timing study without values
            for _ in step():
                pass

    def reset_buffers(self) -> None:
        """Zero the optimizer's buffers."""
        for buffer in self.buffers.values():
            buffer.zero_()

    def spawn(self, coroutine: Coroutine[Future[Any], None, T]) -> Awaitable[T]:
        """Start a second activity of this worker; await the result to join it."""
        return self.runtime.spawn(self, coroutine)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait ``seconds`` on the run's clock; messages still arrive."""
        return self.runtime.sleep(self, self.increment("sleeps"), seconds)

    def code(
        self, what: Coding, codec: str, numbers: float, waits: Waits = "serial"
    ) -> Awaitable[None]:
        """Take the simulated time of encoding or decoding ``numbers`` (`CodingTimes`)."""
        return self.runtime.code(self, what, codec, numbers, waits)

    def counter(self, name: str) -> int:
        """Return a named counter, which `increment` increments."""
        return int(self.state.get(name, 0))

    def increment(self, name: str) -> int:
        """Increment a named counter; return its previous value."""
        before = self.counter(name)
        self.state[name] = before + 1
        return before

    def state_dict(self) -> State:
        """Return all mutable state of this worker at the start of a step, without copies."""
        progress = self.progress
        return {
            "push_sum": self.push_sum,
            "buffers": self.buffers,
            "state": packed(self.state),
            "step": progress.step,
            "steps_taken": progress.steps_taken,
            "gradients": progress.gradients,
            "comm": self.comm.state_dict(),
            **self.side_effects(),
        }

    def load_state_dict(self, saved: State) -> None:
        """Restore the saved state in a worker that has not started.

        Raises KeyError, TypeError or ValueError if the state does not fit this worker.
        """
        device = self.push_sum.device
        fill(self.push_sum, saved["push_sum"])
        for name, buffer in self.buffers.items():
            fill(buffer, saved["buffers"][name])
        if saved["push_sum"].device != device:
            others = {key: saved[key] for key in saved if key not in ("push_sum", "buffers")}
            saved = saved | with_memory(others, lambda raw: raw.to(device))
        self.state.update(unpacked(saved["state"]))
        progress = self.progress
        progress.step, progress.steps_taken = saved["step"], saved["steps_taken"]
        progress.gradients = saved["gradients"]
        self.comm.load_state_dict(saved["comm"])
        self.load_side_effects(saved)

    def side_effects(self) -> State:
        """Return the state outside the algorithm, which repeating a step would not restore."""
        progress = self.progress
        return {
            "taken": self.budget.taken,
            "num_bytes_sent": self.comm.num_bytes_sent,
            "model_buffers": self.model_buffers,
            "loss": progress.loss,
            "observed": progress.observed,
        }

    def load_side_effects(self, saved: State) -> None:
        self.budget.taken, self.comm.num_bytes_sent = saved["taken"], saved["num_bytes_sent"]
        for present, buffer in zip(self.model_buffers, saved["model_buffers"], strict=True):
            fill(present, buffer)
        self.progress.loss, self.progress.observed = saved["loss"], saved["observed"]

    def explained(self, error: BaseException) -> BaseException:
        """Return an error in this worker's coroutines with the rank and step added."""
        if isinstance(error, SPEAKING):
            return error
        if isinstance(error, NotFinite):
            return Diverged(self.rank, self.step, str(error))
        return RankFailed(f"rank {self.rank}, step {self.step}: {format_error(error)}")

    def check_later(self, check: Callable[[], None]) -> None:
        """Postpone a check that waits for the device until the next record, which waits anyway."""
        self.progress.checks.append((self.step, check))
        if len(self.progress.checks) == MAX_CHECKS:
            self.check_now()

    def check_now(self) -> None:
        """Run the postponed checks. Raises Diverged, with the step of the check."""
        checks, self.progress.checks = self.progress.checks, []
        for step, check in checks:
            try:
                check()
            except NotFinite as error:
                raise Diverged(self.rank, step, str(error)) from None

    def log(self, name: str, value: float) -> None:
        """Record a value such as ``staleness``.

        The next training record has the mean of the values since the last record under this name.
        """
        self.progress.observed.setdefault(name, []).append(value)


def fill(target: Tensor, saved: Tensor) -> None:
    """Copy ``saved`` into ``target`` without broadcasting."""
    if target.shape != saved.shape:
        raise ValueError(f"a saved tensor has shape {[*saved.shape]}, not {[*target.shape]}")
    target.copy_(saved)


def activity_name(worker: Worker, coroutine: Coroutine[Any, Any, Any]) -> str:
    """Return the name of a worker's activity for reports."""
    return f"rank {worker.rank} ({getattr(coroutine, '__name__', 'activity')})"
