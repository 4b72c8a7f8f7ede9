"""Checkpoints of a run on real processes.

All ranks save together, quiesced and with no message pending between them:

1. *When.* Synchronous algorithms save at the start of the same step: by its number
   (``checkpoint.every_steps``) or, when a signal or the time requires it, at the latest step that
   any rank is about to begin. Asynchronous workers save as soon as they begin a step, a server
   whenever it waits for a gradient.
2. *Quiescing.* A rank that is ready keeps serving its other activities until all are, and until
   every message sent has been received.
3. *Saving.* Each rank copies its state and continues; a thread writes the copy to a file and the
   checksum to the store. Once all have done so, the thread of rank 0 writes the manifest. Devices
   of a node have the same parameters and messages, which only the first one writes. If the first
   device leads, its file holds the state of its followers, which pass signals on to it.

No rank is ready once it has taken its last step; a checkpoint requested so late is dropped, and the
run ends.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from math import isfinite
from pathlib import Path
from threading import Lock

import torch

from sgp_runner.assembly.real.watchdog import Watchdog
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.optim import Optimizer
from sgp_runner.core.problem import Problem
from sgp_runner.core.state import State, futures_in
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.gradients import Gradients
from sgp_runner.distributed.rank import NO_STEP_LEFT, Rank, ServerBudget
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.distributed.state_parts import StateParts
from sgp_runner.distributed.world import World
from sgp_runner.recording.checkpoint import Trigger, stopped
from sgp_runner.recording.divergence import check_parameters
from sgp_runner.recording.draft import BackgroundWriter, Draft
from sgp_runner.recording.observer import Observer
from sgp_runner.recording.unsaved_state import UnsavedState
from sgp_runner.utils.waits import waiting_for

POLL_SECONDS = 0.01
SHARED = ("push_sum", "buffers", "state", "comm")  # state of a worker, equal on a node's devices
COUNTS = ("step", "steps_taken", "gradients", "taken", "num_bytes_sent")


class RankSaver:
    """Writer of this rank's part of the checkpoints."""

    def __init__(
        self,
        experiment: Experiment,
        world: World,
        runtime: Rank,
        worker: Worker,
        observer: Observer | None,
    ) -> None:
        self.experiment, self.world, self.runtime = experiment, world, runtime
        self.worker, self.observer = worker, observer
        self.asynchronous = experiment.run.algo.asynchronous
        self.trigger = Trigger(experiment.run.checkpoint, self.steps)
        self.lock = Lock()
        self.asked = False  # whether any rank has requested a checkpoint
        self.requests = 0  # number of fulfilled requests
        self.next = worker.step + 1  # the step that begins next
        self.target: int | None = None  # the step at whose start all save
        self.pauses = 0
        self.saving = False
        self.unchecked = False  # whether a server has saved in the midst of a step
        folder = experiment.checkpoints if world.process_rank == 0 else None
        self.writer = BackgroundWriter(folder, runtime.clock.exclude)
        self.unsaved_state = UnsavedState(
            experiment.run.algo.title,
            runtime.scheduler,
            [] if observer is None else observer.unsaved,
            lambda: world.alarm.add("unkept", 1) == 1,
        )

    @property
    def steps(self) -> int:
        """Return the steps of the average worker; asynchronous workers count all gradients."""
        worker = self.worker
        return (worker.step + 1) // worker.size if self.asynchronous else worker.step + 1

    # Called on the watchdog thread, twice a second.

    def on_tick(self) -> None:
        """Request a checkpoint if one is due, and publish this rank's step after any request."""
        if self.asked:
            return
        alarm, request, rank = self.world.alarm, f"save {self.requests}", self.world.process_rank
        if self.world.leader_mode and alarm.check([signal_key := passed_on(self.world.layout)]):
            self.trigger.signal = int(alarm.get(signal_key))
        due = self.trigger.signal is not None or (rank == 0 and self.trigger.late)
        if due or (self.asynchronous and self.steps >= self.trigger.next_step):
            alarm.set(request, "")
        if alarm.check([request]):
            with self.lock:
                self.asked = True
                alarm.set(f"{request} {rank}", str(self.next))
            if self.asynchronous and self.worker.is_server:
                self.runtime.clock.post(self.join_in)

    # Called on the scheduler's thread.

    def start_of_step(self, worker: Worker) -> None:
        self.writer.check()
        self.unsaved_state.begin(worker)
        if self.unchecked:
            self.unsaved_state.check(worker)
            self.unchecked = False
        if self.saving:  # a server finishes pending gradients
            return
        with self.lock:
            asked = self.asked
            if not asked:
                self.next = worker.step + 2
        if self.asynchronous:
            if asked and not worker.is_server:
                self.save()
            return
        if asked and self.target is None:
            keys = [f"save {self.requests} {process}" for process in self.world.running]
            with waiting_for("waits for all ranks to report their next steps"):
                while not self.world.alarm.check(keys):
                    self.serve()
            self.target = max(int(self.world.alarm.get(key)) for key in keys)
        if worker.step + 1 in (self.trigger.next_step, self.target):
            self.save()

    def join_in(self) -> None:
        self.runtime.spawn(self.worker, self.save_between_gradients())

    async def save_between_gradients(self) -> None:
        budget = self.worker.budget
        assert isinstance(budget, ServerBudget)
        if budget.ended:  # and the workers know
            return
        budget.saving = self.unchecked = True
        self.save()
        budget.saving = False
        budget.write_end()

    def save(self) -> None:
        """Wait until all ranks are quiesced, and save. Raises Stopped after a signal."""
        self.writer.wait()
        started = time.monotonic()
        self.saving, meter = True, self.runtime.clock.meter
        counting, meter.counting = meter.counting, False
        self.runtime.scheduler.settle()  # all activities run to where they wait
        self.runtime.comm.transport.quiesce()
        with waiting_for("waits for all ranks to quiesce for a checkpoint"):
            quiesced = self.quiesce()
        if quiesced:
            path, number = self.write()
            if number is not None:
                self.writer.wait()
                self.world.all_gather_workers(None)  # once rank 0 has written the manifest
            self.trigger.saved(self.steps)
            if self.asked and (self.asynchronous or self.target == self.worker.step + 1):
                with self.lock:
                    self.asked, self.target, self.next = False, None, self.worker.step + 2
                    self.requests += 1
            if number is not None:
                raise stopped(number, path)
        self.saving, meter.counting = False, counting
        self.runtime.clock.exclude(time.monotonic() - started)

    def quiesce(self) -> bool:
        """Return whether all ranks are ready, with no message pending and none finished."""
        store, comm = self.world.store, self.runtime.comm
        keys = [f"pause {self.pauses} {process}" for process in self.world.running]
        store.set(f"pause {self.pauses} {self.world.process_rank}", "")
        self.pauses += 1
        while not store.check(keys):
            if store.check([NO_STEP_LEFT]):
                return False
            self.serve()
        while True:
            counts = self.world.all_gather_workers((comm.num_sent, comm.mailbox.num_delivered))
            if sum(sent for sent, _ in counts) == sum(delivered for _, delivered in counts):
                return True
            self.serve()

    def serve(self) -> None:
        """Make this rank's other activities process received messages."""
        self.runtime.clock.catch_up()
        self.runtime.scheduler.settle()
        time.sleep(POLL_SECONDS)

    def write(self) -> tuple[Path, int | None]:
        """Start writing a checkpoint; return its path, and a signal if any rank has received one.

        Every rank has already written the previous checkpoint.
        """
        world, number = self.world, 0
        check_parameters(self.worker)
        self.unsaved_state.check(self.worker)
        if self.observer is not None:
            self.observer.recorder.check()  # a checkpoint without its records is worth nothing
        draft = Draft(self.experiment.checkpoints, self.steps)
        if world.process_rank == 0:
            draft.clear()
            number = world.alarm.add("checkpoints", 1)
        ranks = world.all_gather_workers((self.steps, number, self.trigger.signal))
        steps, number, _ = ranks[0]
        draft = Draft(self.experiment.checkpoints, steps)
        state = self.writer.copy(self.state_dict())
        self.writer.submit(partial(self.write_own, draft, number, state))
        if world.process_rank == 0:
            self.writer.submit(partial(self.finish, draft, number))
        return draft.final, next((signal for *_, signal in ranks if signal is not None), None)

    # Called on the writer's thread, which makes no collective calls.

    def write_own(self, draft: Draft, number: int, state: State) -> None:
        """Write this rank's file, and its checksum to the store (empty after an error)."""
        rank = self.world.process_rank
        name = f"rank{rank}.pt"
        try:
            draft.add(name, state)
        finally:
            self.world.alarm.set(f"written {number} {rank}", draft.files.get(name, ""))

    def finish(self, draft: Draft, number: int) -> None:
        """Complete the checkpoint once all ranks have written, unless one has failed."""
        alarm, running = self.world.alarm, self.world.running
        keys = [f"written {number} {rank}" for rank in running]
        while not alarm.check(keys):
            if time.monotonic() > self.writer.deadline:
                return
            time.sleep(POLL_SECONDS)
        checksums = [str(alarm.get(key), "utf-8") for key in keys]
        draft.files = {
            f"rank{rank}.pt": checksum for rank, checksum in zip(running, checksums, strict=True)
        }
        if all(checksums):
            draft.finish(self.experiment.digest, self.experiment.run.checkpoint.keep)

    def state_dict(self) -> State:
        worker, runtime = self.worker, self.runtime
        for future in futures_in(worker.state):
            while not future.done:
                self.serve()
        state = worker.state_dict()
        # A waiting server has already begun a step with the gradient that it waits for.
        if isinstance(budget := worker.budget, ServerBudget) and not budget.ended:
            state |= {key: state[key] - 1 for key in ("step", "steps_taken", "taken")}
        if self.world.layout.device and self.world.cut is None:
            state = {key: value for key, value in state.items() if key not in SHARED}
        return {
            "worker": state,
            "devices": runtime.gradients.state_dict(),  # no gradient is pending by now
            "now": runtime.clock.now,
            "observer": None if self.observer is None else self.observer.state_dict(),
        }


def passed_on(layout: RankLayout) -> str:
    """Return the store key under which a follower reports a received signal."""
    return f"signal for rank {layout.node_rank}"


def check_fits(saved: State, problem: Problem, optim: Optimizer, world: World) -> None:
    """Raise an error unless ``saved`` is the state of a rank training ``problem``."""
    worker = saved["worker"]
    start = torch.empty(sum(problem.flat.layers), device="meta")  # takes no memory of the device
    parts = None if world.cut is None else StateParts(problem.flat.shapes, world)
    if parts is not None:
        start = start[parts.where]
    shapes = {name: buffer.shape for name, buffer in optim.buffers(start).items()}
    model_shapes = [buffer.shape for buffer in problem.flat.initial]
    counts = [worker[key] for key in COUNTS]
    if worker["push_sum"].shape != (start.numel() + 1,):
        size = worker["push_sum"].numel() - 1
        if parts is not None and size == sum(problem.flat.layers):
            raise ValueError("its state is not divided: continue it with network.shard=none")
        if parts is None and size < start.numel() and world.layout.devices > 1:
            raise ValueError("its state is divided: continue it with network.shard=state")
        raise ValueError("its number of parameters differs")
    if {name: buffer.shape for name, buffer in worker["buffers"].items()} != shapes:
        raise ValueError("its optimizer differs")
    if [buffer.shape for buffer in worker["model_buffers"]] != model_shapes:
        raise ValueError("its model buffers differ")
    if not all(isinstance(count, int) for count in counts) or not isfinite(saved["now"]):
        raise TypeError("its counts are not integers")
    if missing := {"state", "comm", "loss", "observed"} - {*worker} | {"devices"} - {*saved}:
        raise KeyError(*missing)


def serve(
    experiment: Experiment, gradients: Gradients, watch: Watchdog, exit_stack: ExitStack
) -> None:
    """Serve the first device of this node until its algorithm has finished.

    A signal waits until ``exit_stack`` is closed, as in `Session`.
    """
    trigger, world = Trigger(experiment.run.checkpoint, 0), gradients.world

    def pass_signal_on() -> None:
        if trigger.signal is not None:
            world.alarm.set(passed_on(world.layout), str(trigger.signal))

    watch.follow(None, pass_signal_on)
    exit_stack.enter_context(trigger.listening())
    gradients.serve()
