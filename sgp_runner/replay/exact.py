"""A recorded run again, in one process and to the last bit.

Each rank is a `Rank`, the code of the real run. Its clock, in place of waiting for the network and for gradients, hands it what the
recording says it was handed at this very place of its program. A message is taken from what its sender has sent in the replay; a rank that
is ahead of the sender of its next message gives way (`turns`). That always leaves one that can go on, because in the real run every
message was sent before it arrived.

Only an all-reduce is not the real one: it adds up in the order of ranks, where gloo and MPI have orders of their own, so a run with
all-reduces is repeated up to rounding.
"""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch

from sgp_runner.comm.mailbox import Mailbox
from sgp_runner.environment import code_version
from sgp_runner.errors import Aborted, RankFailed
from sgp_runner.faults import Faults
from sgp_runner.memory import use_huge_pages
from sgp_runner.networks.gloo import Gloo
from sgp_runner.place import Place
from sgp_runner.problem import ON_CPU
from sgp_runner.real import Rank
from sgp_runner.replay.recording import ON_THE_SPOT, WAITING, Happening, Recording, checksum_of, read_recordings
from sgp_runner.replay.turns import Turns
from sgp_runner.scheduler import RealClock, Scheduler, Wait
from sgp_runner.schema import load_experiment

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.problem import Problem
    from sgp_runner.run import Run
    from sgp_runner.worker import Worker
    from sgp_runner.world import World

T = TypeVar("T")


class Departed(RankFailed):
    """The replay does something else than what was recorded, because the code or the machine is another one."""

    def __init__(self, rank: int, happening: Happening | None, does: str) -> None:
        recorded = f"a {happening.kind} at {happening.time} s" if happening is not None else "nothing more"
        super().__init__(f"the replay departs from the recording: rank {rank} {does}, where the recording has {recorded}.")


class Over(Aborted):
    """The recording of a run that failed has nothing more for this rank."""


@dataclass(frozen=True)
class Replayed:
    """workers: as they ended, servers last. ended: whether the real run did; the workers of one that failed may be a little further.

    same: for each worker, whether its parameters are those of the real run, bit for bit. reduced: whether there were all-reduces, so that
    parameters may differ by rounding.
    """

    workers: list[Worker]
    ended: bool
    same: list[bool]
    reduced: bool


def replay(directory: Path, each_step: Callable[[Worker], None] = lambda worker: None) -> Replayed:
    """Repeat the run in ``directory``; ``each_step`` may look at a worker at the end of each of its steps.

    Raises ConfigError for what is not a recorded run, `Departed` when the code does something else than it did then, and whatever the
    algorithm raises. Warns of versions that differ.
    """
    experiment = load_experiment(directory / "config.yaml", None)
    recordings = read_recordings(directory, experiment)
    header = recordings[0].header
    for what, then, now in (("sgp-runner", header.code, code_version()), ("PyTorch", header.torch, str(torch.__version__))):
        if then != now:
            warnings.warn(f"the run was recorded with {what} {then}, and this is {now}: it may end with other parameters", stacklevel=2)
    use_huge_pages()
    torch.set_num_threads(header.threads)
    run = experiment.run
    problem = run.make_problem(run.network.compute if isinstance(run.network, Gloo) else ON_CPU)
    stage = Stage(run.nodes)
    ranks = [ReplayedRank(problem, stage, run, recording) for recording in recordings]
    for rank in ranks:
        rank.end_of_step_hook = each_step
    with closing(problem):
        stage.turns.run([rank.repeat for rank in ranks])
    ended = all(recording.footer.ended for recording in recordings)
    same = [checksum_of(rank.worker.push_sum) == rank.recording.footer.parameters for rank in ranks]
    return Replayed([rank.worker for rank in ranks], ended, same, any(rank.replayed.all_reduces for rank in ranks))


class Stage:
    """What the ranks of a replay share: messages on their way, and all-reduces."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.turns = Turns()
        self.channels: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)  # by (src, dst, tag)
        self.parts: dict[int, dict[int, Tensor]] = defaultdict(dict)  # of an all-reduce, by its number and by rank
        self.unread: dict[int, int] = defaultdict(lambda: nodes)  # how many ranks have not taken its mean

    def take(self, src: int, dst: int, tag: int) -> Tensor:
        """The next message."""
        channel = self.channels[src, dst, tag]
        self.turns.wait_until(lambda: bool(channel), f"a message from rank {src}")
        return channel.popleft()

    def mean(self, number: int) -> Tensor:
        """Of what all workers have given to an all-reduce."""
        parts = self.parts[number]
        self.turns.wait_until(lambda: len(parts) == self.nodes, f"all-reduce {number}")
        total = parts[0].clone()
        for rank in range(1, self.nodes):
            total += parts[rank]
        self.unread[number] -= 1
        if not self.unread[number]:
            del self.parts[number], self.unread[number]
        return total.div_(self.nodes)


class ReplayClock(RealClock):
    """Lets the rank see what it saw, where and when it saw it. ``make``: how each kind of happening is brought about."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.rank, self.ended = recording.header.rank, recording.footer.ended
        self.rest = deque(recording.happenings)
        self.moment = 0.0
        self.calls = 0
        self.happening = False
        self.make: dict[str, Callable[[Happening], None]] = {}
        self.poll = (lambda: None) if recording.header.polled else None

    @property
    def now(self) -> float:
        return self.moment

    def exclude(self, seconds: float) -> None:
        """Recorded time has stood still already."""

    def advance(self) -> bool:
        self.happen(self.next("waits", WAITING))
        return True

    def catch_up(self) -> None:
        self.calls += 1
        while self.rest and self.rest[0].place == self.calls:
            self.happen(self.rest.popleft())

    def on_the_spot(self) -> None:
        """A gradient was computed, and not while something else happened."""
        if not self.happening:
            self.moment = self.next("computes a gradient", ON_THE_SPOT).time

    def next(self, does: str, place: int) -> Happening:
        happening = self.rest[0] if self.rest else None
        if happening is None and not self.ended:
            raise Over
        if happening is None or happening.place != place:
            raise Departed(self.rank, happening, does)
        return self.rest.popleft()

    def happen(self, happening: Happening) -> None:
        self.moment, self.happening = happening.time, True
        self.make[happening.kind](happening)
        self.happening = False


class ReplayedComm:
    """Sends to the other ranks of the replay, and receives what the clock delivers."""

    lockstep: ClassVar[bool] = False

    def __init__(self, scheduler: Scheduler, clock: ReplayClock, stage: Stage) -> None:
        self.mailbox = Mailbox(scheduler)
        self.scheduler, self.clock, self.stage, self.rank = scheduler, clock, stage, clock.rank
        self.num_bytes_sent = self.num_sent = self.num_delivered = 0
        self.all_reduces = 0
        self.pending: deque[tuple[int, Wait[Tensor]]] = deque()  # all-reduces that MPI works on

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        self.num_bytes_sent += message.numel() * message.element_size()
        self.stage.channels[self.rank, dst, tag].append(message)

    def recv(self, src: int, tag: int = 0) -> Wait[Tensor]:
        self.clock.catch_up()
        return self.mailbox.recv(src, tag)

    def recv_any(self, tag: int = 0) -> Wait[tuple[int, Tensor]]:
        self.clock.catch_up()
        return self.mailbox.recv_any(tag)

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        self.clock.catch_up()
        return self.mailbox.poll(src, tag)

    def all_reduce(self, tensor: Tensor) -> Awaitable[Tensor]:
        number = self.all_reduces
        self.all_reduces += 1
        self.stage.parts[number][self.rank] = tensor
        if self.clock.poll is None:
            return OnTheSpot(self.stage, number)
        wait: Wait[Tensor] = Wait(("an all-reduce",))
        self.pending.append((number, wait))
        return wait

    def deliver(self, message: Happening) -> None:
        self.mailbox.deliver(message.src, message.tag, self.stage.take(message.src, self.rank, message.tag))

    def complete(self, happening: Happening) -> None:
        if not self.pending:
            raise Departed(self.rank, happening, "has no all-reduce under way")
        number, wait = self.pending.popleft()
        self.scheduler.resolve(wait, self.stage.mean(number))

    def flush(self) -> None:
        """Nothing is held back."""

    def rest(self) -> None:
        """No checkpoint is written."""

    def end_of_step(self) -> None:
        """Steps are of no importance."""

    def close(self) -> list[tuple[int, int, int]]:
        while self.clock.rest:  # what came in when the algorithm had ended
            self.clock.happen(self.clock.rest.popleft())
        return self.mailbox.unread()


class OnTheSpot:
    """An all-reduce of gloo, which holds up the whole rank."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage, self.number = stage, number

    def __await__(self) -> Generator[Wait[Tensor], None, Tensor]:
        return self.stage.mean(self.number)
        yield


class ReplayedWorld:
    """As much of a `World` as a `Rank` needs: one device, which knows the other nodes through the stage only."""

    workers: ClassVar[None] = None
    node: ClassVar[None] = None
    hosts: ClassVar[None] = None
    link: ClassVar[None] = None
    leads: ClassVar[bool] = False

    def __init__(self, stage: Stage, rank: int) -> None:
        self.stage, self.place = stage, Place(rank, stage.nodes)

    def comm(self, scheduler: Scheduler, clock: ReplayClock) -> ReplayedComm:
        return ReplayedComm(scheduler, clock, self.stage)


class LaterThread:
    """In place of the thread that computes gradients: computes one when the recording has it complete."""

    def __init__(self) -> None:
        self.work: Callable[[], None] | None = None

    def submit(self, compute: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        self.work = lambda: future.set_result(compute(*arguments))
        return future


class ReplayedRank(Rank):
    """A `Rank` that goes by its recording; ``faults`` slowed the real one, and have no say here."""

    clock: ReplayClock

    def __init__(self, problem: Problem, stage: Stage, run: Run, recording: Recording) -> None:
        self.recording = recording
        rank = recording.header.rank
        super().__init__(problem, cast("World", ReplayedWorld(stage, rank)), Faults(), ReplayClock(recording))
        comm = self.replayed = cast("ReplayedComm", self.comm)
        self.later = LaterThread()
        self.thread = cast("Any", self.later)
        self.clock.make = {"message": comm.deliver, "gradient": self.compute, "all_reduce": comm.complete}
        total = run.budget(problem)
        shared = run.algo.asynchronous and rank < run.nodes
        budget = RecordedSteps(recording, total.total) if shared else total
        self.algo = run.algo
        self.worker = run.make_worker(problem, rank, comm, budget, self)

    def repeat(self) -> None:
        with suppress(Over):
            self.run(self.worker, self.algo.run(self.worker))

    def compute(self, happening: Happening) -> None:
        """Finish the gradient that the worker waits for."""
        if self.later.work is None:
            raise Departed(self.clock.rank, happening, "has no gradient under way")
        work, self.later.work = self.later.work, None
        work()
        self.clock.posted.get()()

    def stand_still(self, began: float) -> None:
        self.clock.on_the_spot()


class RecordedSteps:
    """The steps that this rank has drawn from the shared budget of ``total``."""

    def __init__(self, recording: Recording, total: int) -> None:
        self.recording, self.steps, self.total = recording, deque(recording.steps), total
        self.taken = 0
        self.spent = False

    def take(self) -> int | None:
        if not self.steps:
            raise Departed(self.recording.header.rank, None, "begins another step") if self.recording.footer.ended else Over
        number = self.steps.popleft()
        self.taken += number is not None
        self.spent = self.spent or number is None or number >= self.total - 1
        return number
