"""A real rank that records what reaches it. Nothing is sent or awaited for it: it looks at the clock and adds lines to a list."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from sgp_runner.comm import Comm
from sgp_runner.comm.mailbox import Mailbox
from sgp_runner.environment import code_version
from sgp_runner.errors import CannotWrite
from sgp_runner.real import Rank
from sgp_runner.replay.recording import FORMAT, ON_THE_SPOT, WAITING, Header, Writer
from sgp_runner.scheduler import RealClock

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.problem import Problem
    from sgp_runner.run import Experiment
    from sgp_runner.scheduler import Scheduler, Wait
    from sgp_runner.worker import Budget, Worker
    from sgp_runner.world import World

T = TypeVar("T")


class RecordingClock(RealClock):
    """Knows where in the rank's program something happens, and when it was reported."""

    def __init__(self, add: Callable[[list[object]], None]) -> None:
        super().__init__()
        self.add = add
        self.calls = 0  # of receiving
        self.inside = WAITING  # the call that is going on
        self.happening = False
        self.arrived = 0.0
        self.noted = False

    def post(self, callback: Callable[[], None]) -> None:
        super().post(partial(self.handle, callback, time.time()))

    def handle(self, callback: Callable[[], None], arrived: float) -> None:
        self.arrived, self.happening, self.noted = arrived, True, False
        callback()
        if not self.noted:
            self.note("all_reduce")
        self.happening = False

    def note(self, kind: str, *details: object) -> None:
        self.noted = True
        place = self.inside if self.happening else ON_THE_SPOT
        self.add([kind, place, round(self.now, 6), *details])

    def catch_up(self) -> None:
        self.calls += 1
        self.inside = self.calls
        super().catch_up()
        self.inside = WAITING


class RecordedMailbox(Mailbox):
    def __init__(self, scheduler: Scheduler, clock: RecordingClock) -> None:
        super().__init__(scheduler)
        self.clock = clock

    def deliver(self, src: int, tag: int, message: Tensor) -> None:
        self.clock.note("message", src, tag, round(self.clock.arrived, 6))
        super().deliver(src, tag, message)


class RecordedComm:
    """What the algorithm talks to in place of ``base``."""

    def __init__(self, base: Comm, add: Callable[[list[object]], None]) -> None:
        self.base, self.add = base, add

    @property
    def num_bytes_sent(self) -> int:
        return self.base.num_bytes_sent

    @num_bytes_sent.setter
    def num_bytes_sent(self, count: int) -> None:
        self.base.num_bytes_sent = count

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        self.add(["send", dst, tag, message.numel() * message.element_size(), round(time.time(), 6)])
        self.base.send(dst, message, tag)

    def recv(self, src: int, tag: int = 0) -> Awaitable[Tensor]:
        return self.base.recv(src, tag)

    def recv_any(self, tag: int = 0) -> Awaitable[tuple[int, Tensor]]:
        return self.base.recv_any(tag)

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        return self.base.poll(src, tag)

    def all_reduce(self, tensor: Tensor) -> Awaitable[Tensor]:
        return self.base.all_reduce(tensor)


class RecordedBudget:
    """A budget that others share, so that the steps it gives are not this rank's to decide."""

    def __init__(self, base: Budget, add: Callable[[list[object]], None]) -> None:
        self.base, self.add = base, add

    @property
    def taken(self) -> int:
        return self.base.taken

    @taken.setter
    def taken(self, number: int) -> None:
        self.base.taken = number

    @property
    def spent(self) -> bool:
        return self.base.spent

    def take(self) -> int | None:
        number = self.base.take()
        self.add(["step", number])
        return number


class RecordedRank(Rank):
    """A `Rank` whose run can be replayed."""

    clock: RecordingClock

    def __init__(self, experiment: Experiment, problem: Problem, world: World) -> None:
        super().__init__(problem, world, experiment.run.faults, RecordingClock(self.add))
        self.experiment = experiment
        self.comm.mailbox = RecordedMailbox(self.scheduler, self.clock)
        self.seconds = 0.0  # that the latest gradient has taken
        start = problem.start()
        header = Header(
            format=FORMAT,
            run=experiment.digest,
            execution=world.gather(uuid.uuid4().hex)[0],
            rank=world.place.rank,
            ranks=world.size,
            host=platform.node(),
            code=code_version(),
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
            polled=self.clock.poll is not None,
            parameters=start.numel(),
            num_bytes=start.numel() * start.element_size(),
            steps_per_epoch=problem.sampler.steps_per_epoch,
        )
        self.writer = Writer(experiment.directory, header)

    def add(self, line: list[object]) -> None:
        self.writer.add(line)

    def record(self, worker: Worker) -> None:
        """What the algorithm asks ``worker`` for goes through here from now on."""
        worker.comm = RecordedComm(worker.comm, self.add)
        if self.experiment.run.algo.asynchronous and not worker.is_server:
            worker.budget = RecordedBudget(worker.budget, self.add)

    def run(self, worker: Worker, coroutine: Coroutine[Wait[Any], None, None]) -> None:
        try:
            super().run(worker, coroutine)
        except Exception:
            with suppress(CannotWrite):
                self.writer.finish(False, worker.push_sum, self.now())
            raise
        self.writer.finish(True, worker.push_sum, self.now())

    def paced(self, compute: Callable[[], T]) -> tuple[float, T]:
        began, result = super().paced(compute)
        self.seconds = self.now() - began
        return began, result

    def stand_still(self, began: float) -> None:
        before = self.now()
        super().stand_still(began)
        self.clock.note("gradient", round(self.seconds + self.now() - before, 6))
