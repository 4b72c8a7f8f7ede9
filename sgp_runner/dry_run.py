"""Proof, before the first step, that what the ranks of an algorithm do fits together: they all do it once, dry.

Every rank runs the algorithm's own code, in one process, on a model of four parameters. There is no data, gradients are zero and take one
unit of time, messages none. What ranks ask for is compared as they ask for it:

* all workers take part in the same collectives, in the same order: of the same kind, as long, and in the same step; servers in none;
* every message that is awaited comes, nobody waits in a circle, and no message is left over in the end.

That is done for as many steps as make each phase of the algorithm last for its whole period, from the first step to the last one, where
algorithms drain what is under way. On so many nodes that this would be more than `MOST` steps, all of them together, it is fewer steps, but
at least two, with the same phases. Of an asynchronous algorithm, whose course depends on time, one course is seen: equally fast workers.

Devices of one node run the same code on the same values, so what holds for nodes holds for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from sgp_runner import timing
from sgp_runner.comm.mailbox import Mailbox
from sgp_runner.errors import ConfigError, Misfit, RankFailed
from sgp_runner.models.timing_only import TimingOnly
from sgp_runner.scheduler import Deadlock, Scheduler, VirtualClock, Wait
from sgp_runner.worker import activity_name, naming_the_rank

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.run import Run
    from sgp_runner.worker import Worker

T = TypeVar("T")

MODEL = TimingOnly(grain=4)
MOST = 2**13
NAMED = 3  # ranks of a circle


def prove_calls(run: Run) -> None:
    """Raises ConfigError, naming ranks and step, unless all ranks of ``run`` do what fits together."""
    if run.model.trains and (run.data.train_size or run.nodes) < run.nodes:
        return  # too few samples, as will be said when they are read
    attempt = DryRun(run)
    try:
        attempt.run()
    except Misfit as error:
        nodes = f"{run.nodes} node{'s' if run.nodes > 1 else ''}"
        raise ConfigError("algo", f"{run.algo.title} cannot run on {nodes}: {error}.") from error
    except RankFailed as error:
        raise ConfigError("algo", f"{run.algo.title} failed when it was tried without gradients: {error}.") from error


def steps_of(run: Run) -> int:
    """How many steps each node takes in a dry run."""
    phases = [phase for phase in sorted(run.algo.phases(run.nodes)) if phase[0] < run.epochs]
    ends = [*(begin for begin, _ in phases[1:]), run.epochs]
    lasting = [(end - begin, steps) for (begin, steps), end in zip(phases, ends, strict=True) if end > begin]
    needed = max(ceil(steps * run.epochs / epochs) for epochs, steps in lasting)
    return min(needed, max(MOST // run.nodes, 2))


@dataclass
class Collective:
    """What one rank was the ``first`` to begin, as its step number ``taken``, and who has still to take part."""

    first: int
    taken: int
    when: str
    what: str
    missing: set[int]
    joined: list[tuple[Wait[Tensor], Tensor]] = field(default_factory=list)

    @property
    def begun(self) -> str:
        return f"{self.when} rank {self.first} would begin {self.what}"


class DryRun:
    """All ranks, and the runtime of all of them."""

    def __init__(self, run: Run) -> None:
        self.size, self.asynchronous = run.nodes, run.algo.asynchronous
        self.clock = VirtualClock()
        self.scheduler = Scheduler(self.clock)
        self.collectives: list[Collective] = []
        self.sent: dict[tuple[int, int, int], list[str]] = {}  # (src, dst, tag) -> in which steps
        self.comms = [DryComm(rank, self) for rank in range(run.nodes + run.algo.servers)]
        problem = timing.make_problem(run, timing.Study(None, steps_of(run)), MODEL)
        for comm, budget in zip(self.comms, run.budgets(problem), strict=True):
            worker = comm.worker = run.make_worker(problem, comm.rank, comm, budget, self)
            self.scheduler.spawn(naming_the_rank(worker, run.algo.run(worker)), f"rank {comm.rank}")

    def run(self) -> None:
        """Raises Misfit."""
        try:
            self.scheduler.run()
        except Deadlock:
            raise Misfit(self.standstill()) from None
        finally:
            self.scheduler.close()
        for comm in self.comms:
            for src, tag, count in comm.mailbox.unread():
                when_sent, number = self.sent[src, comm.rank, tag][-count], f" (tag {tag})" if tag else ""
                raise Misfit(f"{when_sent} rank {src} would send rank {comm.rank} a message{number} that nobody receives")
        for collective in self.collectives:
            if collective.missing:
                raise Misfit(f"{collective.begun}, in which rank {min(collective.missing)} does not take part")

    # What workers ask of their runtime.

    def grad(self, worker: Worker, at: Tensor) -> Wait[Tensor]:
        worker.progress.gradients += 1
        worker.progress.loss = 0.0
        wait: Wait[Tensor] = Wait(("its gradient",))
        self.clock.at(self.clock.now + 1, self.scheduler.resolve, wait, at.new_zeros(at.shape))
        return wait

    def mean_grad(self, worker: Worker) -> Awaitable[Tensor]:
        worker.progress.gradients += 1
        worker.progress.loss = 0.0
        return self.join(worker, "a mean of gradients", worker.params.new_zeros(worker.params.shape))

    def spawn(self, worker: Worker, coroutine: Coroutine[Wait[Any], None, T]) -> Wait[T]:
        return self.scheduler.spawn(naming_the_rank(worker, coroutine), activity_name(worker, coroutine))

    def start_of_step(self, worker: Worker) -> None:
        """Nothing is saved."""

    def end_of_step(self, worker: Worker) -> None:
        """Nothing is recorded."""

    def now(self) -> float:
        return self.clock.now

    # What they do together.

    def join(self, worker: Worker, kind: str, tensor: Tensor) -> Wait[Tensor]:
        """Take part in the next collective with ``tensor``; the mean is what comes out."""
        rank, comm, what = worker.rank, self.comms[worker.rank], f"{kind} of {tensor.numel()} numbers"
        if worker.is_server:
            raise Misfit(f"{when(worker)} rank {rank}, a server, would take part in {what}, which is for workers alone")
        number, comm.joined = comm.joined, comm.joined + 1
        if number == len(self.collectives):
            self.collectives.append(Collective(rank, worker.steps_taken, when(worker), what, set(range(self.size))))
        collective = self.collectives[number]
        if what != collective.what or (worker.steps_taken != collective.taken and not self.asynchronous):
            order = "all ranks must take part in the same ones in the same order (the model has 4 parameters here)"
            raise Misfit(f"{collective.begun}, but rank {rank} next {what}, {when(worker)}; {order}")
        wait: Wait[Tensor] = Wait(("all_reduce", number, collective.missing))
        collective.joined.append((wait, tensor))
        collective.missing.discard(rank)
        if not collective.missing:
            import torch

            mean = torch.stack([value for _, value in collective.joined]).mean(0)
            for each, _ in collective.joined:
                self.scheduler.resolve(each, mean.clone())
            collective.joined.clear()
        return wait

    # Why nobody can go on.

    def standstill(self) -> str:
        """Follows who waits for whom, to a circle or to somebody that has ended."""
        waits: dict[int, Wait[Any]] = {}  # by rank, but for activities of a rank that wait for one another
        for task in self.scheduler.tasks:
            if task.waiting is not None and task.waiting.what[0] != "finish":
                waits.setdefault(int(task.name.split()[1]), task.waiting)
        path: list[int] = []
        words: dict[int, str] = {}
        rank: int | None = min(waits)
        while rank is not None and rank not in words:
            if rank not in waits:
                return f"{words[path[-1]]}: rank {rank} has ended"
            path.append(rank)
            what, rank_after = self.awaited(waits[rank])
            words[rank] = f"{when(self.comms[rank].worker)} rank {rank} would wait for {what}"
            rank = rank_after
        if rank is None:
            return f"{words[path[-1]]}, and nobody sends one"
        circle = [words[each] for each in path[path.index(rank) :]]
        more = f", and so on, {len(circle)} ranks" if len(circle) > NAMED else ""
        return f"ranks would wait in a circle: {', '.join(circle[:NAMED])}{more}"

    def awaited(self, wait: Wait[Any]) -> tuple[str, int | None]:
        """In words, and from whom."""
        match wait.what:
            case ("message", src, tag):
                return f"a message from rank {src}" + (f" (tag {tag})" if tag else ""), src
            case ("all_reduce", number, missing):
                return f"rank {min(missing)} in {self.collectives[number].what}", min(missing)
            case _:
                return "a message from anybody", None


def when(worker: Worker) -> str:
    return f"in step {worker.step}" if worker.step >= 0 else "before step 0"


class DryComm:
    """The communication of one rank: a message has arrived once it is sent."""

    worker: Worker

    def __init__(self, rank: int, attempt: DryRun) -> None:
        self.rank, self.attempt = rank, attempt
        self.mailbox = Mailbox(attempt.scheduler)
        self.num_bytes_sent = 0
        self.joined = 0  # collectives

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        self.check(dst, "send to")
        self.attempt.sent.setdefault((self.rank, dst, tag), []).append(when(self.worker))
        self.attempt.comms[dst].mailbox.deliver(self.rank, tag, message)

    def recv(self, src: int, tag: int = 0) -> Wait[Tensor]:
        self.check(src, "receive from")
        return self.mailbox.recv(src, tag)

    def recv_any(self, tag: int = 0) -> Wait[tuple[int, Tensor]]:
        return self.mailbox.recv_any(tag)

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        self.check(src, "receive from")
        return self.mailbox.poll(src, tag)

    def all_reduce(self, tensor: Tensor) -> Wait[Tensor]:
        return self.attempt.join(self.worker, "an all-reduce", tensor)

    def check(self, rank: int, would: str) -> None:
        last = len(self.attempt.comms) - 1
        if rank == self.rank or not 0 <= rank <= last:
            whom = "itself" if rank == self.rank else f"rank {rank}; ranks are 0 to {last}"
            raise Misfit(f"{when(self.worker)} rank {self.rank} would {would} {whom}")
