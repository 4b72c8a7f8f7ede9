"""Recording of a real rank: sent messages and received events, with times."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch

from sgp_runner.config.experiment import Experiment
from sgp_runner.core.problem import Problem
from sgp_runner.core.scheduler import RealClock
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.world import World
from sgp_runner.recording.trace import FORMAT, ON_THE_SPOT, WAITING, Header, Writer
from sgp_runner.utils.errors import CannotWrite
from sgp_runner.utils.provenance import code_version

Add = Callable[[list[object]], None]  # writes a line of the recording


class RecordingClock(RealClock):
    """Clock that records each event, the call that handled it, and when it was reported."""

    def __init__(self, add: Add) -> None:
        super().__init__()
        self.add = add
        self.calls = 0  # number of receiving calls
        self.call_index = WAITING  # of the current call
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

    def sends(self, dst: int, tag: int, num_bytes: int) -> None:
        self.add(["send", dst, tag, num_bytes, round(time.time(), 6)])

    def delivers(self, src: int, tag: int) -> None:
        self.note("message", src, tag, round(self.arrived, 6))

    def ends(self, collective: int) -> None:
        self.note("collective", collective)

    def wakes(self, number: int) -> None:
        self.note("sleep", number)

    def note(self, kind: str, *details: object) -> None:
        self.add(
            [kind, self.call_index if self.handling else ON_THE_SPOT, round(self.now, 6), *details]
        )

    def catch_up(self) -> None:
        self.calls += 1
        self.call_index = self.calls
        super().catch_up()
        self.call_index = WAITING


class TraceRecorder:
    """Recorder of one rank's run, for replay."""

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

    def step(self, number: int | None) -> None:
        """Record the step that this rank takes from the budget shared by all ranks."""
        self.writer.add(["step", number])

    @contextmanager
    def recording(self, worker: Worker) -> Iterator[None]:
        """Complete the recording after the algorithm of ``worker`` has finished."""
        try:
            yield
        except Exception:
            with suppress(CannotWrite):
                self.writer.finish(False, worker.push_sum, self.clock.now)
            raise
        self.writer.finish(True, worker.push_sum, self.clock.now)
