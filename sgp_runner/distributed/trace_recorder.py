"""Recording of a real rank: adds what reaches it, with times, to a list, and sends nothing."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import torch
from torch import Tensor

from sgp_runner.config.experiment import Experiment
from sgp_runner.core.budget import Budget
from sgp_runner.core.comm import Transport
from sgp_runner.core.problem import Problem
from sgp_runner.core.scheduler import Future, RealClock
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.world import World
from sgp_runner.recording.trace import FORMAT, ON_THE_SPOT, WAITING, Header, Writer
from sgp_runner.utils.errors import CannotWrite
from sgp_runner.utils.provenance import code_version

Add = Callable[[list[object]], None]  # writes a line of the recording


class RecordingClock(RealClock):
    """Clock that notes each event, its place in the rank's program, and when it was reported."""

    def __init__(self, add: Add) -> None:
        super().__init__()
        self.add = add
        self.calls = 0  # number of receiving calls
        self.inside = WAITING  # place of the current call
        self.handling = False
        self.arrived = 0.0

    def post(self, callback: Callable[[], None]) -> None:
        super().post(partial(self.handle, callback, time.time()))

    def handle(self, callback: Callable[[], None], arrived: float) -> None:
        self.arrived, self.handling = arrived, True
        callback()
        self.handling = False

    def computed(self, seconds: float) -> None:
        self.note("gradient", round(seconds, 6))

    def delivers(self, src: int, tag: int) -> None:
        self.note("message", src, tag, round(self.arrived, 6))

    def ends(self, collective: int) -> None:
        self.note("collective", collective)

    def wakes(self, number: int) -> None:
        self.note("sleep", number)

    def note(self, kind: str, *details: object) -> None:
        self.add(
            [kind, self.inside if self.handling else ON_THE_SPOT, round(self.now, 6), *details]
        )

    def catch_up(self) -> None:
        self.calls += 1
        self.inside = self.calls
        super().catch_up()
        self.inside = WAITING


class RecordingTransport(Transport):
    """Transport that notes what is sent over ``base``."""

    def __init__(self, base: Transport, add: Add) -> None:
        self.base, self.add = base, add

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        self.add(
            ["send", dst, tag, message.numel() * message.element_size(), round(time.time(), 6)]
        )
        return self.base.send(dst, tag, message)

    def empty_like(self, tensor: Tensor, peers: Sequence[int]) -> Tensor:
        return self.base.empty_like(tensor, peers)

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.base.all_reduce(number, tensor)

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.base.all_gather(number, tensor)

    def before_receiving(self, src: int | None) -> None:
        self.base.before_receiving(src)

    def close(self) -> None:
        self.base.close()


class RecordedBudget:
    """Budget shared with other ranks that notes the steps it gives to this one."""

    def __init__(self, base: Budget, add: Add) -> None:
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

    def next_step(self) -> int | None:
        number = self.base.next_step()
        self.add(["step", number])
        return number


class TraceRecorder:
    """Records the run of one rank for replay, by wrapping the parts that the rank uses."""

    def __init__(self, experiment: Experiment, problem: Problem, world: World) -> None:
        start = problem.start()
        header = Header(
            format=FORMAT,
            run=experiment.digest,
            execution=world.gather(uuid.uuid4().hex)[0],
            rank=world.layout.node_rank,
            ranks=world.size,
            host=platform.node(),
            code=code_version(),
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
            polled=experiment.run.network.name == "mpi",
            parameters=start.numel(),
            num_bytes=start.numel() * start.element_size(),
            steps_per_epoch=problem.sampler.steps_per_epoch,
        )
        self.writer = Writer(experiment.directory, header)
        self.clock = RecordingClock(self.writer.add)

    def wrap(self, transport: Transport) -> Transport:
        return RecordingTransport(transport, self.writer.add)

    def budget(self, base: Budget) -> Budget:
        return RecordedBudget(base, self.writer.add)

    @contextmanager
    def recording(self, worker: Worker) -> Iterator[None]:
        """Record while the algorithm of ``worker`` runs, and complete the recording at the end."""
        try:
            yield
        except Exception:
            with suppress(CannotWrite):
                self.writer.finish(False, worker.push_sum, self.clock.now)
            raise
        self.writer.finish(True, worker.push_sum, self.clock.now)
