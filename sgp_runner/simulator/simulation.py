"""A run in simulated time: every worker in one process, real gradients, modelled machines."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.cluster.coding_times import Coding, Waits
from sgp_runner.core.budget import own_budgets
from sgp_runner.core.comm import Comm, Transport, copied
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.make_worker import make_worker
from sgp_runner.core.optim import Horizon, Optimizer
from sgp_runner.core.problem import Problem
from sgp_runner.core.scheduler import Deadlock, Future, Scheduler, resolved
from sgp_runner.core.state import State
from sgp_runner.core.step_hooks import NULL_LISTENER, StepListener
from sgp_runner.core.survivors import VOTE_SECONDS, step_snapshot
from sgp_runner.core.worker import Worker, activity_name
from sgp_runner.simulator.compute import Contribution
from sgp_runner.simulator.engine import Engine, Gradient, NoGradients
from sgp_runner.simulator.fabric import Sent
from sgp_runner.simulator.machine_model import MODELLED, GivenTimes, MachineModel
from sgp_runner.simulator.machines import ModelledMachines
from sgp_runner.simulator.repetition import Journals, Repetition
from sgp_runner.utils.errors import Lost
from sgp_runner.utils.memory import few_collections
from sgp_runner.utils.sums import sum_in_order

T = TypeVar("T")
ITS_GRADIENT = ("its gradient",)  # what a worker waits for


class Simulation:
    """The workers' side of a simulated run: runtime, mailboxes and scheduler.

    survives: whether other workers continue after a permanent crash. If so, every worker has a
        snapshot of its current step, and `run` raises Lost at a crash.
    wrap: wraps the transport of each worker.
    listener: notified of the start and end of each step.
    """

    def __init__(
        self,
        model: MachineModel,
        engine: Engine,
        times: GivenTimes = MODELLED,
        survives: bool = False,
        wrap: Callable[[Transport], Transport] = lambda transport: transport,
        listener: StepListener = NULL_LISTENER,
    ) -> None:
        self.size, self.faults = model.size, model.faults
        self.engine, self.listener = engine, listener
        self.machines = ModelledMachines(model, engine, times, self)
        self.clock, self.fabric = self.machines.clock, self.machines.fabric
        self.clock.handlers |= {"gradient ends": self.on_gradient_end, "wakes": self.on_wake}
        self.clock.handlers["coded"] = self.on_coded
        self.skipped_seconds = 0.0  # of periods that were not simulated
        self.scheduler = Scheduler(self.clock)
        self.mailboxes = [Mailbox(self.scheduler) for _ in range(model.ranks)]
        self.comms = [
            Comm(mailbox, wrap(SimulatedTransport(rank, self)))
            for rank, mailbox in enumerate(self.mailboxes)
        ]
        # The receiver of the workers' requests.
        self.outside: ModelledMachines | Repetition = self.machines
        # Gradients in flight, by rank and step.
        self.gradients: dict[tuple[int, int], tuple[Worker, Gradient, Future[Any]]] = {}
        self.computed = 0  # gradients, including those averaged by collectives
        self.sleeps: dict[tuple[int, int], Future[None]] = {}  # by rank and number
        self.coding_seconds = [0.0] * model.ranks
        self.journals = Journals(self.clock)
        self.step_snapshots: dict[int, State] | None = {} if survives else None  # by rank
        for death in model.faults.deaths if survives else ():
            if max(death.ranks) < self.size:
                self.clock.at_first(death.start + VOTE_SECONDS, lose, death.ranks)

    # The runtime of the workers.

    def now(self) -> float:
        return self.clock.now + self.skipped_seconds

    def start_of_step(self, worker: Worker) -> None:
        if self.step_snapshots is not None:
            self.step_snapshots[worker.rank] = step_snapshot(worker)
        self.listener.start_of_step(worker)

    def end_of_step(self, worker: Worker) -> None:
        self.listener.end_of_step(worker)

    def spawn(self, worker: Worker, coroutine: Coroutine[Future[Any], None, T]) -> Future[T]:
        return self.scheduler.spawn(coroutine, activity_name(worker, coroutine), worker.explained)

    def sleep(self, worker: Worker, number: int, seconds: float) -> Future[None]:
        future = self.sleeps[worker.rank, number] = Future(("the end of its sleep",))
        self.outside.sleep(worker.rank, number, seconds)
        return future

    def code(
        self, worker: Worker, what: Coding, codec: str, numbers: float, waits: Waits
    ) -> Future[None]:
        rank, overlaps = worker.rank, self.machines.model.cluster.codecs.overlap
        seconds = self.machines.coding_seconds(rank, what, codec, numbers)
        if not seconds:
            return resolved(None)
        self.coding_seconds[rank] += seconds
        number, future = worker.increment("sleeps"), resolved(None)
        if waits == "always" or (waits == "serial" and not overlaps):
            future = self.sleeps[rank, number] = Future((f"the end of its {what[:-1]}ing",))
        self.outside.code(rank, number, what, seconds)
        return future

    def grad(self, worker: Worker, at: Tensor, allow_parts: bool = False) -> Future[Tensor]:
        future: Future[Tensor] = Future(ITS_GRADIENT)
        self.start_gradient(worker, at, future, None)
        return future

    def mean_grad(self, worker: Worker, allow_parts: bool = False) -> Future[Tensor]:
        number = worker.comm.next_collective()
        future: Future[Tensor] = self.outside.collective_future(number, worker.rank, gathers=False)
        num_bytes = self.machines.model.wire.num_bytes(worker.params)
        gradient = self.start_gradient(worker, worker.params, future, (number, num_bytes))

        def finish(mean: Tensor) -> Tensor:
            worker.progress.loss = gradient.loss
            return mean.clone()

        future.finish = finish
        return future

    def start_gradient(
        self,
        worker: Worker,
        at: Tensor,
        future: Future[Tensor],
        contribution: Contribution | None,
    ) -> Gradient:
        gradient = Gradient(worker.rank, worker.progress.gradients, at, worker.model_buffers)
        gradient.due = self.clock.now
        worker.progress.gradients += 1
        self.gradients[gradient.rank, gradient.step] = worker, gradient, future
        self.outside.start_gradient(gradient, contribution)
        return gradient

    def abandon(self, worker: Worker) -> None:
        key = worker.rank, worker.progress.gradients - 1
        if key in self.gradients:
            _, gradient, future = self.gradients.pop(key)
            self.outside.abandon(gradient)
            self.scheduler.resolve(future, None)

    # Events of the machines.

    def on_gradient_end(self, rank: int, step: int) -> None:
        if (rank, step) not in self.gradients:  # abandoned
            return
        self.journals.note(rank, "gradient", step)
        worker, gradient, future = self.gradients.pop((rank, step))
        self.computed += 1
        value = self.engine.finish(gradient)
        self.machines.compute.busy_until[rank] = self.clock.now
        worker.progress.loss = gradient.loss
        self.scheduler.resolve(future, value)

    def pop_gradient(self, rank: int, step: int) -> Gradient:
        """Hand over a gradient in flight to a collective."""
        _, gradient, _ = self.gradients.pop((rank, step))
        self.computed += 1
        return gradient

    def pop_gradient_of(self, future: Future[Any]) -> Gradient:
        """Hand over the gradient whose mean a worker awaits."""
        key = next(key for key, entry in self.gradients.items() if entry[2] is future)
        return self.pop_gradient(*key)

    def receive(self, sent: Sent) -> None:
        dst, src, tag, message = sent.dst, sent.src, sent.tag, sent.open()
        self.journals.note(dst, "deliver", src, tag, message)
        self.mailboxes[dst].deliver(src, tag, message)

    def on_collective_end(
        self, rank: int, number: int, future: Future[Any], result: Any, num_bytes: int
    ) -> None:
        self.comms[rank].num_bytes_sent += num_bytes
        self.machines.compute.busy_until[rank] = self.clock.now
        self.journals.note(rank, "collective", number, result)
        self.scheduler.resolve(future, result)

    def on_wake(self, rank: int, number: int) -> None:
        self.journals.note(rank, "sleep", number)
        self.scheduler.resolve(self.sleeps.pop((rank, number)), None)

    def on_coded(self, rank: int, number: int, what: Coding, begin: float) -> None:
        if (rank, number) in self.sleeps:
            self.on_wake(rank, number)

    # The run as a whole.

    def make_workers(
        self, problem: Problem, algo: Algorithm, optim: Optimizer, horizon: Horizon
    ) -> list[Worker]:
        """Return the workers with initial parameters, servers last, without starting them."""
        total = horizon.steps * (self.size if algo.asynchronous else 1)
        budgets = own_budgets(total, self.size, algo.servers, algo.asynchronous)
        return [
            make_worker(problem, optim, horizon, algo.asynchronous, rank, comm, budget, self)
            for rank, (comm, budget) in enumerate(zip(self.comms, budgets, strict=True))
        ]

    def start(self, worker: Worker, coroutine: Coroutine[Future[Any], None, None]) -> None:
        self.scheduler.spawn(coroutine, f"rank {worker.rank}", worker.explained)

    def run(self) -> None:
        """Run until every worker has finished; raise LeftInFlight if messages remain."""
        try:
            with few_collections(none=isinstance(self.engine, NoGradients)):
                self.scheduler.run()
        except Deadlock as error:
            self.check_times()
            raise Deadlock("\n  ".join([str(error), *self.faults.for_good])) from None
        finally:
            self.scheduler.close()
        unread = [
            f"rank {rank} did not receive {count} message(s) from rank {src} (tag {tag})"
            for rank, mailbox in enumerate(self.mailboxes)
            for src, tag, count in mailbox.unread()
        ]
        if self.fabric.in_flight:
            unread.append(f"{self.fabric.in_flight} message(s) are still in flight")
        under_way = self.machines.collectives.under_way.values()
        unread += [f"{collective.name} has not ended" for collective in under_way]
        if unread:
            self.check_times()
            raise LeftInFlight("the run ended with messages in flight: " + "; ".join(unread))

    def check_times(self) -> None:
        """Raise TimeOverflow if an event is at infinity although no fault is permanent."""
        if self.clock.never and not self.faults.for_good:
            raise TimeOverflow(f"simulated time is not finite after {self.clock.now:g} s")

    @property
    def coding(self) -> dict[str, float]:
        """The mean coding seconds of gradient workers, for the summary; empty without coding."""
        seconds = sum_in_order(self.coding_seconds[: self.size]) / self.size
        return {"coding_s": seconds} if seconds else {}

    # Saving and resuming, when no worker is ready to run.

    def state_dict(self) -> State:
        """Return the state of the machines."""
        return self.machines.state_dict() | {"coding_seconds": self.coding_seconds}

    @contextmanager
    def repeating(self) -> Iterator[Repetition]:
        """Redirect the workers' requests to a `Repetition` while they repeat their steps."""
        listener, repetition = self.listener, Repetition()
        self.listener, self.outside = NULL_LISTENER, repetition
        yield repetition
        self.listener, self.outside = listener, self.machines

    def load_state_dict(self, state: State, repetition: Repetition) -> None:
        """Restore the machines after the workers have repeated their unfinished steps."""
        self.machines.load_state_dict(state, repetition.futures)
        self.coding_seconds = state.get("coding_seconds", self.coding_seconds)
        for _, gradient, _ in self.gradients.values():
            self.engine.start(gradient)


def lose(ranks: Sequence[int]) -> None:
    """Raise Lost: the other workers notice that ``ranks`` have crashed permanently."""
    raise Lost(ranks)


class TimeOverflow(RuntimeError):
    """Raised if a simulated time exceeds the largest floating-point number."""


class LeftInFlight(RuntimeError):
    """Raised if an algorithm ended without receiving all messages."""


class SimulatedTransport(Transport):
    """The transport of one simulated worker."""

    __slots__ = ("rank", "simulation")

    def __init__(self, rank: int, simulation: Simulation) -> None:
        self.rank, self.simulation = rank, simulation

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        return self.simulation.outside.send(self.rank, dst, tag, message)

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.begin(number, tensor, gathers=False), 0  # bytes are counted at its end

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.begin(number, tensor, gathers=True), 0

    def begin(self, number: int, tensor: Tensor, gathers: bool) -> Future[Any]:
        outside = self.simulation.outside
        future = outside.collective_future(number, self.rank, gathers)
        future.finish = copied
        outside.contribute(number, self.rank, tensor)
        return future
