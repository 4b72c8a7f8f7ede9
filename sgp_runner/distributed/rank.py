"""Runtime of a real rank: this process runs one rank; others run the same program.

The scheduler and the algorithms are the same as in the simulator; only the clock, the gradients and
the messages are real.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from sgp_runner.cluster.coding_times import Coding, Waits
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.timetable import Timetable
from sgp_runner.core.budget import OwnBudget
from sgp_runner.core.comm import Comm, all_reduce_bytes
from sgp_runner.core.flat import Gradient, joined
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.problem import Problem
from sgp_runner.core.scheduler import Future, RealClock, Scheduler, resolved
from sgp_runner.core.state import State
from sgp_runner.core.step_hooks import NULL_LISTENER, StepListener
from sgp_runner.core.survivors import step_snapshot
from sgp_runner.core.worker import Worker, activity_name
from sgp_runner.distributed.gradients import Gradients
from sgp_runner.distributed.world import World
from sgp_runner.utils.errors import Stopped
from sgp_runner.utils.waits import device_waits, waiting_for

T = TypeVar("T")
# Begin and duration of a gradient (seconds), and its value and loss.
Timed = tuple[float, float, tuple["Gradient", "Tensor"]]

NO_STEP_LEFT = "no step left"  # key in the store: of workers together, or of a server


def connect(
    world: World,
    scheduler: Scheduler,
    clock: RealClock,
) -> Comm:
    """Return the communication of this process in ``world``."""
    mailbox = Mailbox(scheduler)
    return Comm(mailbox, world.transport(scheduler, clock, mailbox))


class Rank:
    """The runtime of one real rank, which sleeps while ``faults`` slow or pause it.

    clock: receives everything that reaches this rank
    executor: computes gradients while the worker has other activities or messages to serve
    survives: whether the rank may have to continue without others, from a ``step_snapshot``
    listener: called at the start and end of each step
    """

    def __init__(
        self,
        problem: Problem,
        world: World,
        faults: Faults,
        clock: RealClock | None = None,
        executor: Executor | None = None,
        survives: bool = False,
        listener: StepListener = NULL_LISTENER,
    ) -> None:
        self.problem, self.workers = problem, world.workers
        self.clock = clock or RealClock()
        self.scheduler = Scheduler(self.clock, world.in_order)
        self.clock.describe = self.scheduler.waits
        self.comm = connect(world, self.scheduler, self.clock)
        self.gradients = Gradients(problem, world, self.clock.meter)
        # A GPU that orders its own work computes while the host waits.
        self.clock.meter.counting = not (world.in_order and problem.compute.device != "cpu")
        self.thread = executor or ThreadPoolExecutor(1)
        self.gradient: Future[Any] = resolved(None)  # the last one requested of the thread
        self.start_next: Callable[[], None] | None = None  # after an abandoned one
        self.listener, self.survives = listener, survives
        self.paused, self.recording = 0.0, False
        self.step_snapshot: State | None = None
        times = Timetable(faults)
        node_rank = world.layout.node_rank
        self.slow, self.awake = times.slow(node_rank), times.awake(node_rank)
        # With faults, a slow node must not wait for the others while its gradient is timed.
        self.overlaps = world.workers is not None and not faults.any

    def now(self) -> float:
        """Return the seconds since the start; while a step is recorded, those at its end."""
        return self.paused - self.clock.start if self.recording else self.clock.now

    def start_of_step(self, worker: Worker) -> None:
        if self.survives:
            self.step_snapshot = step_snapshot(worker)
        self.listener.start_of_step(worker)

    def end_of_step(self, worker: Worker) -> None:
        """Record and evaluate, which does not count as training time."""
        self.comm.transport.end_of_step()
        self.watch_device(worker.step)
        self.paused, self.recording = time.monotonic(), True
        self.listener.end_of_step(worker)
        self.recording = False
        self.clock.exclude(time.monotonic() - self.paused)

    def watch_device(self, step: int) -> None:
        """Measure the wait until the device has done all work up to the end of ``step``.

        The host of a GPU runs ahead, so the device may wait for another rank while no thread does.
        """
        if (device := self.problem.compute.device) == "cpu":
            return
        event = torch.cuda.current_stream(device).record_event()

        def over() -> bool:
            try:
                return bool(event.query())
            except RuntimeError:  # which the next call of the main thread raises too
                return True

        device_waits(f"waits for its device to finish step {step}", over)

    def settle(self) -> None:
        """Wait for the device before anything is recorded: its pending work is training time."""
        device = self.problem.compute.device
        if device != "cpu":
            with waiting_for("waits for its device"):
                torch.cuda.synchronize(device)
            self.paused = time.monotonic()

    def spawn(self, worker: Worker, coroutine: Coroutine[Future[Any], None, T]) -> Future[T]:
        return self.scheduler.spawn(coroutine, activity_name(worker, coroutine), worker.explained)

    def sleep(self, worker: Worker, number: int, seconds: float) -> Future[None]:
        future: Future[None] = self.scheduler.future(("the end of its sleep",))

        def wake() -> None:
            self.clock.wakes(number)
            self.scheduler.resolve(future, None)

        self.clock.post_after(seconds, number, wake)
        return future

    def code(
        self, worker: Worker, what: Coding, codec: str, numbers: float, waits: Waits
    ) -> Future[None]:
        """Do nothing, because real coding has already taken its time."""
        return resolved(None)

    def grad(self, worker: Worker, at: Tensor, allow_parts: bool = False) -> Future[Gradient]:
        number = worker.progress.gradients
        worker.progress.gradients += 1
        self.comm.transport.flush()
        if self.scheduler.in_order or (len(self.scheduler.tasks) == 1 and self.clock.poll is None):
            timed = self.paced(partial(self.gradients.local, at, number, allow_parts))
            return resolved(self.complete(worker, *timed))
        future = self.gradient = Future(("its gradient",))

        def start() -> None:
            self.clock.computing = True
            done = self.thread.submit(self.paced, self.gradients.local_async(at, number))
            done.add_done_callback(lambda done: self.clock.post(lambda: finish(done)))

        def finish(done: concurrent.futures.Future[Timed]) -> None:
            self.clock.computing = False
            value = self.complete(worker, *done.result())
            if future is self.gradient and not future.done:
                self.scheduler.resolve(future, value)
            elif self.start_next is not None:
                self.start_next()
            self.start_next = None

        if self.clock.computing:  # an abandoned gradient
            self.start_next = start
        else:
            start()
        return future

    def abandon(self, worker: Worker) -> None:
        self.start_next = None
        if not self.gradient.done:
            self.scheduler.resolve(self.gradient, None)

    def paced(self, compute: Callable[[], tuple[Gradient, Tensor]]) -> Timed:
        """Compute a gradient, delayed as on a slow node.

        Another thread serves messages at the same time.
        """
        began = self.clock.now
        result = compute()
        time.sleep(max(0.0, self.slow.finish(began, now := self.clock.now) - now))
        return began, self.clock.now - began, result

    def complete(
        self, worker: Worker, began: float, seconds: float, result: tuple[Gradient, Tensor]
    ) -> Gradient:
        """Sleep through the pauses of a gradient that began at ``began``; return its value."""
        before = self.clock.now
        time.sleep(max(0.0, self.awake.finish(began, before) - before))
        self.clock.computed(seconds + self.clock.now - before)
        value, worker.progress.loss = result
        return value

    def mean_grad(self, worker: Worker, allow_parts: bool = False) -> Awaitable[Gradient]:
        if not self.overlaps:
            return self.grad_then_reduce(worker)
        number = worker.progress.gradients
        worker.progress.gradients += 1
        self.comm.transport.flush()
        self.comm.num_bytes_sent += all_reduce_bytes(worker.params, worker.size)
        value, worker.progress.loss = self.gradients.mean(worker.params, number, allow_parts)
        return resolved(value)

    async def grad_then_reduce(self, worker: Worker) -> Tensor:
        return await self.comm.all_reduce(joined(await self.grad(worker, worker.params)))

    def run(self, worker: Worker, coroutine: Coroutine[Future[Any], None, None]) -> None:
        """Run until the algorithm has finished here and the last messages have arrived."""
        try:
            self.scheduler.spawn(coroutine, f"rank {worker.rank}", worker.explained)
            self.scheduler.run()
        except Stopped as stop:
            self.gradients.release(stop)
            self.comm.close()
            raise
        finally:
            self.scheduler.close()
        self.gradients.release()
        with waiting_for("waits for the last messages of all ranks"):
            unread = self.comm.close()
        self.settle()
        if unread:
            what = "; ".join(f"{count} from rank {src} (tag {tag})" for src, tag, count in unread)
            raise RuntimeError(f"the algorithm ended without receiving all its messages: {what}")


class SharedBudget:
    """Budget of ``total`` gradients shared by all workers, counted in the store of the run.

    note: called with each step assigned to this worker, and finally with None
    """

    def __init__(
        self, store: Store, total: int, note: Callable[[int | None], None] = lambda number: None
    ) -> None:
        self.store, self.total, self.note = store, total, note
        self.spent = False
        self.before = 0  # gradients taken before an interruption

    @property
    def taken(self) -> int:
        return self.before + (
            int(self.store.get("gradients")) if self.store.check(["gradients"]) else 0
        )

    @taken.setter
    def taken(self, number: int) -> None:
        self.before = number

    def next_step(self) -> int | None:
        number = self.before + self.store.add("gradients", 1) - 1
        self.spent = self.spent or number >= self.total - 1
        step = number if number < self.total else None
        if step is None:
            self.store.set(NO_STEP_LEFT, "")
        self.note(step)
        return step


@dataclass
class ServerBudget(OwnBudget):
    """Budget of a server, whose end is written to the store of the run.

    Workers between steps must not wait for a finished server to save a checkpoint. A server that
    finishes while saving takes part, and writes its end afterwards.

    ended: whether no step is left
    saving: whether the server takes part in a checkpoint
    """

    store: Store = field(kw_only=True)
    ended: bool = False
    saving: bool = False

    def next_step(self) -> int | None:
        number = OwnBudget.next_step(self)
        self.ended = number is None
        self.write_end()
        return number

    def write_end(self) -> None:
        if self.ended and not self.saving:
            self.store.set(NO_STEP_LEFT, "")
