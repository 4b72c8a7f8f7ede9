"""Dry run before the first step to verify that the calls of an algorithm's ranks match.

All ranks run the algorithm's code in one process, on a model of four parameters, without data.
Gradients are zero and take one unit of time; messages take no time. The dry run checks that:

* all workers take part in the same collectives in the same order, with the same kind, length and
  step; servers take part in none;
* every awaited message arrives, ranks do not wait for each other in a circle, and all messages are
  received by the end;
* no rank computes gradients endlessly outside of its steps, or finishes before them.

The dry run has enough steps for each phase of the algorithm to last its whole period. It includes
the last step, in which algorithms drain pending work. If all nodes together would take more than
`MAX_STEPS` steps, it has fewer steps with the same phases, but at least two. The order of calls of
an asynchronous algorithm depends on time; only the order of equally fast workers is verified.

All devices of a node make the same calls, so the dry run has one rank for each node.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from math import ceil
from typing import Any, TypeVar

from torch import Tensor

from sgp_runner.assembly.build import build_worker, timing_problem
from sgp_runner.cluster.coding_times import Coding, Waits
from sgp_runner.config.run import Run
from sgp_runner.core.budget import own_budgets
from sgp_runner.core.comm import Comm, Transport, copied, mean_of
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.scheduler import Deadlock, Future, Scheduler, VirtualClock, resolved
from sgp_runner.core.timing_study import Study
from sgp_runner.core.worker import Worker, activity_name
from sgp_runner.models.timing_only import TimingOnly
from sgp_runner.utils.errors import CallMismatch, ConfigError, RankFailed
from sgp_runner.utils.memory import few_collections

T = TypeVar("T")

MODEL = TimingOnly(grain=4)
MAX_STEPS = 2**13
MAX_IDLE = 1000  # most gradients of a rank while no rank takes a step
MAX_NAMED = 3  # most ranks of a circle that an error lists


def verify_calls(run: Run) -> None:
    """Raise ConfigError, naming ranks and step, unless the calls of all ranks match."""
    batch = run.nodes * run.batch_size
    if run.model.trains and (run.data.train_size or batch) < batch:
        return  # too few samples, which is reported when they are read
    with few_collections(none=True):
        attempt = DryRun(run)
        try:
            attempt.run()
            check_range(run, attempt)
        except CallMismatch as error:
            nodes = f"{run.nodes} node{'s' if run.nodes > 1 else ''}"
            what = f"{run.algo.title} cannot run on {nodes}: {error}."
            raise ConfigError("algo", what) from error
        except RankFailed as error:
            what = f"{run.algo.title} failed in its dry run without gradients: {error}."
            raise ConfigError("algo", what) from error
        finally:
            attempt.close()


def check_range(run: Run, attempt: DryRun) -> None:
    """Raise ConfigError for a range of rates in a run whose steps depend on time."""
    ranged = run.network.clock == "simulated" and len(run.cluster.links.rates) > 1
    if ranged and (run.algo.asynchronous or attempt.polls or run.on_failure == "continue"):
        raise ConfigError(
            "cluster.links.bandwidth",
            f"the course of {run.algo.title} with these settings depends on time, so a range of "
            "rates gives no range of times: sweep over both rates.",
        )


def steps_of(run: Run) -> int:
    """Return the number of steps that each node takes in a dry run."""
    phases = [phase for phase in sorted(run.algo.phases(run.nodes)) if phase[0] < run.epochs]
    ends = [*(begin for begin, _ in phases[1:]), run.epochs]
    lasting = [
        (end - begin, steps)
        for (begin, steps), end in zip(phases, ends, strict=True)
        if end > begin
    ]
    needed = max(ceil(steps * run.epochs / epochs) for epochs, steps in lasting)
    return min(needed, max(MAX_STEPS // run.nodes, 2))


@dataclass
class DryCollective:
    """A collective in progress.

    first: rank that began the collective; ``taken`` is the number of steps that it had taken
    missing: ranks that have not joined yet
    joined: future and tensor of each rank that has joined
    """

    first: int
    taken: int
    when: str
    what: str
    missing: set[int]
    joined: dict[int, tuple[Future[Any], Tensor]] = field(default_factory=dict)

    @property
    def begun(self) -> str:
        return f"{self.when} rank {self.first} would begin {self.what}"


class DryRun:
    """All ranks and their shared runtime."""

    def __init__(self, run: Run) -> None:
        self.size, self.asynchronous = run.nodes, run.algo.asynchronous
        self.clock = VirtualClock()
        self.scheduler = Scheduler(self.clock)
        self.idle = 0  # gradients since the latest step of any rank
        self.polls = False  # whether an algorithm has asked which messages have arrived
        self.collectives: list[DryCollective] = []
        self.gradients: dict[int, Future[Any]] = {}  # the last one of each rank
        self.sent: dict[tuple[int, int, int], list[str]] = {}  # (src, dst, tag) -> steps
        problem = timing_problem(run, Study(None, steps_of(run)), MODEL)
        self.mailboxes = [Mailbox(self.scheduler) for _ in range(run.nodes + run.algo.servers)]
        self.workers: list[Worker] = []
        total, shared = run.total_steps(problem), run.algo.asynchronous
        for rank, budget in enumerate(own_budgets(total, run.nodes, run.algo.servers, shared)):
            comm = Comm(self.mailboxes[rank], DryTransport(rank, self))
            self.workers.append(build_worker(run, problem, rank, comm, budget, self))
        for worker in self.workers:
            self.scheduler.spawn(run.algo.run(worker), f"rank {worker.rank}", worker.explained)

    def run(self) -> None:
        """Run all ranks to the end. Raises CallMismatch if their calls do not match."""
        try:
            self.scheduler.run()
        except Deadlock:
            raise CallMismatch(self.deadlock_reason()) from None
        finally:
            self.scheduler.close()
        for rank, mailbox in enumerate(self.mailboxes):
            for src, tag, count in mailbox.unread():
                when_sent, which = self.sent[src, rank, tag][-count], tagged(tag)
                raise CallMismatch(
                    f"{when_sent} rank {src} would send rank {rank} a message{which} "
                    "that is never received"
                )
        for collective in self.collectives:
            if collective.missing:
                rank = min(collective.missing)
                raise CallMismatch(f"{collective.begun}, in which rank {rank} does not take part")

        for worker in self.workers[: self.size]:
            if not worker.budget.spent:
                raise CallMismatch(
                    f"{when(worker)} rank {worker.rank} would end although it has steps left; loop "
                    "over worker.steps()"
                )

    def close(self) -> None:
        """Break the reference cycle with the workers, so that their memory is freed at once."""
        self.workers.clear()
        self.mailboxes.clear()

    # The runtime of the workers.

    def grad(self, worker: Worker, at: Tensor, allow_parts: bool = False) -> Future[Tensor]:
        self.idle += 1
        if self.idle > MAX_IDLE * self.size:
            raise CallMismatch(
                f"{when(worker)} rank {worker.rank} would compute gradients endlessly; loop over "
                "worker.steps()"
            )
        worker.progress.gradients += 1
        worker.progress.loss = 0.0
        future: Future[Tensor] = Future(("its gradient",))
        self.gradients[worker.rank] = future
        self.clock.at(self.clock.now + 1, "call", self.end_gradient, future, at)
        return future

    def end_gradient(self, future: Future[Any], at: Tensor) -> None:
        if not future.done:
            self.scheduler.resolve(future, at.new_zeros(at.shape))

    def abandon(self, worker: Worker) -> None:
        future = self.gradients.get(worker.rank)
        if future is not None and not future.done:
            self.scheduler.resolve(future, None)

    def mean_grad(self, worker: Worker, allow_parts: bool = False) -> Future[Tensor]:
        worker.progress.gradients += 1
        worker.progress.loss = 0.0
        gradient = worker.params.new_zeros(worker.params.shape)
        return self.join(
            worker.comm.next_collective(), worker, "a mean of gradients", gradient, mean_of
        )

    def spawn(self, worker: Worker, coroutine: Coroutine[Future[Any], None, T]) -> Future[T]:
        return self.scheduler.spawn(coroutine, activity_name(worker, coroutine), worker.explained)

    def sleep(self, worker: Worker, number: int, seconds: float) -> Future[None]:
        future: Future[None] = Future(("the end of its sleep",))
        self.clock.at(self.clock.now + seconds, "call", self.scheduler.resolve, future, None)
        return future

    def code(
        self, worker: Worker, what: Coding, codec: str, numbers: float, waits: Waits
    ) -> Future[None]:
        """Do nothing: encoding takes no time."""
        return resolved(None)

    def start_of_step(self, worker: Worker) -> None:
        self.idle = 0

    def end_of_step(self, worker: Worker) -> None:
        """Do nothing: no metrics are recorded."""

    def now(self) -> float:
        return self.clock.now

    # Collectives.

    def join(
        self,
        number: int,
        worker: Worker,
        kind: str,
        tensor: Tensor,
        result: Callable[[list[Tensor]], T],
    ) -> Future[T]:
        """Join the collective ``number`` with ``tensor``."""
        rank, what = worker.rank, f"{kind} of {tensor.numel()} numbers"
        if worker.is_server:
            raise CallMismatch(
                f"{when(worker)} rank {rank}, a server, would take part in {what}, "
                "which is for workers only"
            )
        if number == len(self.collectives):
            self.collectives.append(
                DryCollective(rank, worker.steps_taken, when(worker), what, set(range(self.size)))
            )
        collective = self.collectives[number]
        if what != collective.what or (
            worker.steps_taken != collective.taken and not self.asynchronous
        ):
            order = (
                "all ranks must call the same collectives in the same order "
                "(the model has 4 parameters here)"
            )
            raise CallMismatch(
                f"{collective.begun}, but rank {rank} would begin {what}, {when(worker)}; {order}"
            )
        future: Future[T] = Future(("collective", number, collective.missing), copied)
        collective.joined[rank] = future, tensor
        collective.missing.discard(rank)
        if not collective.missing:
            tensors = [collective.joined[rank][1] for rank in range(self.size)]
            value = result(tensors)
            for contributed, _ in collective.joined.values():
                self.scheduler.resolve(contributed, value)
            collective.joined.clear()
        return future

    # Diagnosis of deadlocks.

    def deadlock_reason(self) -> str:
        """Describe which rank waits for which, until a rank repeats or has finished."""
        # By rank, leaving out activities of a rank that wait for one another.
        waits: dict[int, Future[Any]] = {}
        for task in self.scheduler.tasks:
            if task.waiting is not None and task.waiting.what[0] != "finish":
                waits.setdefault(int(task.name.split()[1]), task.waiting)
        path: list[int] = []
        sentences: dict[int, str] = {}
        rank: int | None = min(waits)
        while rank is not None and rank not in sentences:
            if rank not in waits:
                return f"{sentences[path[-1]]}: rank {rank} has ended"
            path.append(rank)
            what, rank_after = self.awaited(waits[rank])
            sentences[rank] = f"{when(self.workers[rank])} rank {rank} would wait for {what}"
            rank = rank_after
        if rank is None:
            return f"{sentences[path[-1]]}, but none is sent"
        circle = [sentences[rank] for rank in path[path.index(rank) :]]
        more = f", and so on, {len(circle)} ranks" if len(circle) > MAX_NAMED else ""
        return f"ranks would wait in a circle: {', '.join(circle[:MAX_NAMED])}{more}"

    def awaited(self, future: Future[Any]) -> tuple[str, int | None]:
        """Describe an awaited event, and return the rank that must cause it, if known."""
        match future.what:
            case ("message", src, tag):
                return f"a message from rank {src}{tagged(tag)}", src
            case ("collective", number, missing):
                return f"rank {min(missing)} in {self.collectives[number].what}", min(missing)
            case _:
                return "a message from any rank", None


def tagged(tag: int) -> str:
    return f" (tag {tag})" if tag else ""


def when(worker: Worker) -> str:
    return f"in step {worker.step}" if worker.step >= 0 else "before step 0"


class DryTransport(Transport):
    """Transport of one rank whose messages arrive as soon as they are sent."""

    def __init__(self, rank: int, attempt: DryRun) -> None:
        self.rank, self.attempt = rank, attempt

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        self.check(dst, "send to")
        self.attempt.sent.setdefault((self.rank, dst, tag), []).append(
            when(self.attempt.workers[self.rank])
        )
        self.attempt.mailboxes[dst].deliver(self.rank, tag, message)
        return 0

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.attempt.join(
            number, self.attempt.workers[self.rank], "an all-reduce", tensor, mean_of
        ), 0

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.attempt.join(
            number, self.attempt.workers[self.rank], "an all-gather", tensor, list
        ), 0

    def may_poll(self, arrived: bool) -> bool:
        self.attempt.polls = True
        return arrived

    def check_any_source(self) -> None:
        self.attempt.polls = True

    def before_receiving(self, src: int | None) -> None:
        if src is not None:
            self.check(src, "receive from")

    def check(self, rank: int, would: str) -> None:
        last = len(self.attempt.mailboxes) - 1
        if rank == self.rank or not 0 <= rank <= last:
            whom = "itself" if rank == self.rank else f"rank {rank}; ranks are 0 to {last}"
            raise CallMismatch(
                f"{when(self.attempt.workers[self.rank])} rank {self.rank} would {would} {whom}"
            )
