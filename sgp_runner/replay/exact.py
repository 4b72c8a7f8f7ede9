"""Bit-exact replay of a recorded run in one process.

Each rank is a `Rank`, the code of the real run. Instead of waiting for the network and for
gradients, its clock delivers each recorded event during the same call of the program. The content
of a message comes from the replayed sender. If the sender has not sent it yet, the receiving rank
waits (`turns`). At least one rank can always continue, because in the real run every message was
sent before it arrived.

The replay sums all-reduces in the order of ranks; gloo and MPI use other orders. Therefore the
parameters of a run with all-reduces are reproduced only up to rounding.
"""

from __future__ import annotations

import concurrent.futures
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from sgp_runner.assembly.build import build_problem, build_worker
from sgp_runner.assembly.networks.gloo import Gloo
from sgp_runner.cluster.faults import Faults
from sgp_runner.config.experiment import load_experiment
from sgp_runner.config.run import Run
from sgp_runner.core.budget import OwnBudget
from sgp_runner.core.comm import Transport, all_gather_bytes, all_reduce_bytes, mean_of
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.problem import ON_CPU, Problem
from sgp_runner.core.scheduler import Future, RealClock, Scheduler
from sgp_runner.core.step_hooks import StepHooks
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.rank import Rank
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.recording.pretrained import pretrain
from sgp_runner.recording.trace import (
    ON_THE_SPOT,
    WAITING,
    Recording,
    TraceEvent,
    checksum_of,
    read_recordings,
)
from sgp_runner.replay.turns import Turns
from sgp_runner.utils.errors import Aborted, RankFailed
from sgp_runner.utils.memory import use_huge_pages
from sgp_runner.utils.provenance import code_version

T = TypeVar("T")


class ReplayMismatch(RankFailed):
    """The replay deviates from the recording because the code or the machine differs."""

    def __init__(self, rank: int, event: TraceEvent | None, does: str) -> None:
        recorded = f"a {event.kind} at {event.time} s" if event is not None else "nothing more"
        super().__init__(
            f"the replay deviates from the recording: rank {rank} {does}, "
            f"where the recording has {recorded}."
        )


class EndOfTrace(Aborted):
    """The recording of a failed run has no more events for this rank."""


@dataclass(frozen=True)
class Replayed:
    """The outcome of a replay.

    workers: the workers at the end, servers last; if the real run failed, they may have computed
        slightly more than the real workers
    ended: whether the real run reached the end of the algorithm
    same: for each worker, whether its parameters equal the real ones bit for bit
    reduced: whether there were all-reduces, so that parameters may differ by rounding
    """

    workers: list[Worker]
    ended: bool
    same: list[bool]
    reduced: bool


def replay(directory: Path, each_step: Callable[[Worker], None] = lambda worker: None) -> Replayed:
    """Repeat the run in ``directory``; call ``each_step`` with the worker after each step.

    Raises ConfigError if the directory does not contain a recorded run, `ReplayMismatch` if the
    code deviates from the recording, and any error of the algorithm. Warns about differing
    versions.
    """
    experiment = load_experiment(directory / "config.yaml", None)
    recordings = read_recordings(directory, experiment)
    header = recordings[0].header
    for what, then, now in (
        ("sgp-runner", header.code, code_version()),
        ("PyTorch", header.torch, str(torch.__version__)),
    ):
        if then != now:
            warnings.warn(
                f"the run was recorded with {what} {then}, and this is {now}: "
                "the final parameters may differ",
                stacklevel=2,
            )
    use_huge_pages()
    torch.set_num_threads(header.threads)
    run = experiment.run
    problem = build_problem(run, run.network.compute if isinstance(run.network, Gloo) else ON_CPU)
    pretrain(problem, experiment, directory.resolve().parent.parent)
    network = ReplayNetwork(run.nodes)
    ranks = [ReplayedRank(problem, network, run, recording, each_step) for recording in recordings]
    with closing(problem):
        network.turns.run([rank.repeat for rank in ranks])
    return Replayed(
        [rank.worker for rank in ranks],
        all(recording.footer.ended for recording in recordings),
        [checksum_of(rank.worker.push_sum) == rank.recording.footer.parameters for rank in ranks],
        any(rank.worker.comm.collectives for rank in ranks),
    )


class ReplayNetwork:
    """State shared by the ranks of a replay: messages in flight and collectives."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.turns = Turns()
        # Messages by (src, dst, tag).
        self.channels: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)
        # By number of the collective: parts by rank, and the number of ranks that have not read it.
        self.parts: dict[int, dict[int, Tensor]] = defaultdict(dict)
        self.unread: dict[int, int] = defaultdict(lambda: nodes)

    def gathered(self, number: int) -> list[Tensor]:
        """Return the contributions of all workers to a collective, by rank, once complete."""
        parts = self.parts[number]
        self.turns.wait_until(lambda: len(parts) == self.nodes, f"collective {number}")
        self.unread[number] -= 1
        if not self.unread[number]:
            del self.parts[number], self.unread[number]
        return [parts[rank] for rank in range(self.nodes)]


class ReplayClock(RealClock):
    """Clock that delivers each event at its recorded call and time.

    make: kind of event -> function that reproduces the event
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.rank, self.ended = recording.header.rank, recording.footer.ended
        self.pending = deque(recording.events)
        self.moment = 0.0
        self.calls = 0
        self.delivering = False
        self.sleeps: dict[int, Callable[[], None]] = {}  # callback of each sleep, by number
        self.make: dict[str, Callable[[TraceEvent], None]] = {"sleep": self.wake}
        if recording.header.polled:
            self.poll_with(lambda: None, 0.0)

    @property
    def now(self) -> float:
        return self.moment

    def exclude(self, seconds: float) -> None:
        """Do nothing: recorded times already exclude evaluation."""

    def post_after(self, seconds: float, number: int, callback: Callable[[], None]) -> None:
        self.sleeps[number] = callback

    def wake(self, sleep: TraceEvent) -> None:
        if sleep.number not in self.sleeps:
            raise ReplayMismatch(self.rank, sleep, "does not sleep")
        self.sleeps.pop(sleep.number)()

    def advance(self) -> bool:
        self.fire(self.next("waits", WAITING))
        return True

    def catch_up(self) -> None:
        self.calls += 1
        while self.pending and self.pending[0].call_index == self.calls:
            self.fire(self.pending.popleft())

    def computed(self, seconds: float) -> None:
        """Advance to the recorded end of an inline gradient, except while an event is delivered."""
        if not self.delivering:
            self.moment = self.next("computes a gradient", ON_THE_SPOT).time

    def next(self, does: str, call_index: int) -> TraceEvent:
        event = self.pending[0] if self.pending else None
        if event is None and not self.ended:
            raise EndOfTrace
        if event is None or event.call_index != call_index:
            raise ReplayMismatch(self.rank, event, does)
        return self.pending.popleft()

    def fire(self, event: TraceEvent) -> None:
        self.moment, self.delivering = event.time, True
        self.make[event.kind](event)
        self.delivering = False


class ReplayTransport(Transport):
    """Transport between replayed ranks; messages arrive at their recorded times."""

    def __init__(
        self, network: ReplayNetwork, scheduler: Scheduler, clock: ReplayClock, mailbox: Mailbox
    ) -> None:
        self.scheduler, self.clock, self.mailbox = scheduler, clock, mailbox
        self.network, self.rank = network, clock.rank
        self.under_way: dict[int, Callable[[], None]] = {}  # callback of each collective, by number
        clock.make |= {"message": self.deliver, "collective": self.end}

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        self.network.channels[self.rank, dst, tag].append(message)
        return message.numel() * message.element_size()

    def before_receiving(self, src: int | None) -> None:
        self.clock.catch_up()

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        mean = self.join(("all-reduce", number, None), tensor, mean_of)
        return mean, all_reduce_bytes(tensor, self.network.nodes)

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        parts = self.join(("all-gather", number, None), tensor, lambda parts: parts)
        return parts, all_gather_bytes(tensor, self.network.nodes)

    def join(
        self, what: tuple[Any, ...], tensor: Tensor, value: Callable[[list[Tensor]], T]
    ) -> Future[T]:
        future: Future[T] = self.scheduler.future(what)
        self.network.parts[what[1]][self.rank] = tensor
        self.under_way[what[1]] = lambda: self.scheduler.resolve(
            future, value(self.network.gathered(what[1]))
        )
        return future

    def deliver(self, message: TraceEvent) -> None:
        channel = self.network.channels[message.src, self.rank, message.tag]
        self.network.turns.wait_until(lambda: bool(channel), f"a message from rank {message.src}")
        self.mailbox.deliver(message.src, message.tag, channel.popleft())

    def end(self, collective: TraceEvent) -> None:
        if collective.number not in self.under_way:
            raise ReplayMismatch(self.rank, collective, "has no such collective under way")
        self.under_way.pop(collective.number)()

    def close(self) -> None:
        while self.clock.pending:  # events after the end of the algorithm
            self.clock.fire(self.clock.pending.popleft())


class DeferredExecutor(Executor):
    """Executor that replaces the gradient thread; it computes a gradient at its recorded event."""

    def __init__(self, clock: ReplayClock) -> None:
        self.clock = clock
        self.work: Callable[[], None] | None = None
        clock.make["gradient"] = self.compute

    def submit(
        self, compute: Callable[..., T], /, *arguments: Any, **keywords: Any
    ) -> concurrent.futures.Future[T]:
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.work = lambda: done.set_result(compute(*arguments, **keywords))
        return done

    def compute(self, gradient: TraceEvent) -> None:
        """Finish the gradient that the worker waits for."""
        if self.work is None:
            raise ReplayMismatch(self.clock.rank, gradient, "has no gradient under way")
        work, self.work = self.work, None
        work()
        self.clock.posted.get()()


class ReplayedRank:
    """A rank that follows its recording; it injects no faults: recorded times include them."""

    def __init__(
        self,
        problem: Problem,
        network: ReplayNetwork,
        run: Run,
        recording: Recording,
        each_step: Callable[[Worker], None],
    ) -> None:
        self.recording, self.algo = recording, run.algo
        rank, clock = recording.header.rank, ReplayClock(recording)
        # The attributes of a world that `Rank` uses, for one device per node.
        world: Any = SimpleNamespace(
            layout=RankLayout(rank, network.nodes),
            transport=partial(ReplayTransport, network),
            **dict.fromkeys(("workers", "node", "hierarchy", "node_cpu_group", "shaper", "cut")),
            **dict.fromkeys(("leader_mode", "in_order"), False),
        )
        steps = StepHooks()
        steps.recorder = each_step
        self.runtime = Rank(
            problem, world, Faults(), clock, executor=DeferredExecutor(clock), listener=steps
        )
        total = OwnBudget(run.total_steps(problem))
        shared = run.algo.asynchronous and rank < run.nodes
        budget = RecordedSteps(recording, total.total) if shared else total
        self.worker = build_worker(
            run,
            problem,
            rank,
            self.runtime.comm,
            budget,
            self.runtime,
            self.runtime.gradients.buffers,
        )

    def repeat(self) -> None:
        with suppress(EndOfTrace):
            self.runtime.run(self.worker, self.algo.run(self.worker))


class RecordedSteps:
    """Budget with the recorded steps that a rank drew from a shared budget of ``total`` steps."""

    def __init__(self, recording: Recording, total: int) -> None:
        self.recording, self.steps, self.total = recording, deque(recording.steps), total
        self.taken = 0
        self.spent = False

    def next_step(self) -> int | None:
        if not self.steps:
            raise (
                ReplayMismatch(self.recording.header.rank, None, "begins another step")
                if self.recording.footer.ended
                else EndOfTrace
            )
        number = self.steps.popleft()
        self.taken += number is not None
        self.spent = self.spent or number is None or number >= self.total - 1
        return number
