"""Session: one run from its experiment to its summary, on simulated or real machines.

A `Session` builds the machines and workers of a `Backend`, restores a checkpoint, runs the
algorithm to its end and evaluates the results. After each loss of ranks, it continues with a
smaller membership.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from types import FrameType
from typing import Protocol

from sgp_runner.assembly.opening import open_recorder
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.membership import Membership, full_membership, membership_of
from sgp_runner.console.estimate import Work
from sgp_runner.core.problem import Problem
from sgp_runner.core.step_hooks import StepListener
from sgp_runner.core.worker import Worker
from sgp_runner.recording.checkpoint import Found, Trigger, UnusableCheckpoint, resume_message
from sgp_runner.recording.observer import Observer
from sgp_runner.recording.recorder import Position, Recorder
from sgp_runner.recording.throughput import Throughput
from sgp_runner.utils.errors import LOSSES, CannotSave, Evicted
from sgp_runner.utils.messages import logger
from sgp_runner.utils.signals import signal_state, stop_signals
from sgp_runner.utils.units import quoted


class CheckpointSaver(Protocol):
    """Writer of checkpoints while the algorithm runs."""

    @property
    def trigger(self) -> Trigger: ...
    @property
    def writer(self) -> AbstractContextManager[object]: ...
    def start_of_step(self, worker: Worker) -> None: ...


class Backend(Protocol):
    """The machines of a run, and the workers of this process.

    `Session.run` defines the order in which the methods are called.

    problem: problem of this process
    original_rank: original rank that this process records; None if it records nothing
    """

    @property
    def problem(self) -> Problem: ...
    @property
    def original_rank(self) -> int | None: ...
    @property
    def throughput(self) -> Throughput | None: ...

    def open(self) -> Found | None:
        """Return the newest checkpoint not refused so far; all processes return the same one."""

    def refuse(self, error: UnusableCheckpoint) -> None:
        """Report that a checkpoint is not used; the next `open` returns an earlier checkpoint."""

    def build(
        self, membership: Membership, checkpoint: Found | None, listener: StepListener
    ) -> Position | None:
        """Build machines and workers; return where in the records the run continues.

        Returns None if this process has no worker and its work is done. If the checkpoint does not
        fit on one process, all processes raise UnusableCheckpoint.
        """

    def restore(self, observer: Observer | None) -> None:
        """Restore machines, workers and observer from the checkpoint."""

    def make_saver(self, observer: Observer | None) -> CheckpointSaver | None:
        """Return the object that saves the run; None if the run has no checkpoints."""

    def run(self) -> None:
        """Run the algorithm to its end. Raises one of `LOSSES` if ranks are lost."""

    def shrink(self, loss: Exception) -> tuple[Membership, float]:
        """Build machines and workers for the remaining ranks.

        Returns their membership and the epoch from which they continue.
        """

    def work(self) -> Work:
        """Return the progress of the run; called from another thread."""

    def now(self) -> float:
        """Return seconds since the start of the run."""

    def settle(self) -> None:
        """Wait until devices have finished training computations, before anything is recorded."""

    def conclude(self, observer: Observer | None) -> dict[str, object] | None:
        """Evaluate the final models; return the results on the process that writes the summary.

        Raises one of `LOSSES` if ranks are lost.
        """

    @property
    def concluded(self) -> bool:
        """Return whether the run has its results, so that a later loss of ranks does no harm."""


class Session:
    """A run on one backend; it also listens to the steps of all workers in this process.

    exit_stack: closed after the summary has been written. Until then, a signal that arrives after
        training is deferred: the last evaluation takes less time than repeating the training.
    """

    def __init__(self, experiment: Experiment, backend: Backend, exit_stack: ExitStack) -> None:
        self.experiment, self.backend, self.exit_stack = experiment, backend, exit_stack
        self.observer: Observer | None = None
        self.saver: CheckpointSaver | None = None
        self.signal: int | None = None  # signal that asked the run to save and stop

    def run(self) -> dict[str, object] | None:
        """Execute the run and return the summary; None on processes without a summary."""
        run, backend = self.experiment.run, self.backend
        checkpoint, membership, start = self.build()
        if start is None:
            return None
        with closing(backend.problem), self.recording(start) as recorder:
            if recorder is not None:
                self.observer = Observer(
                    run,
                    backend.problem,
                    recorder,
                    backend.settle,
                    membership,
                    self.experiment.started,
                    backend.throughput,
                )
            if checkpoint is not None:
                if backend.original_rank == 0:
                    logger.info(resume_message(checkpoint, membership.lost(run)))
                backend.restore(self.observer)
                self.warn_of_lost_state()
            summary = self.train()
            if recorder is not None:
                recorder.finish(summary)
        return summary

    def build(self) -> tuple[Found | None, Membership, Position | None]:
        """Build the backend from the newest checkpoint that fits the run."""
        from sgp_runner.assembly.dry_run import verify_calls  # imports torch, which takes seconds

        run, backend = self.experiment.run, self.backend
        while True:
            checkpoint = backend.open()
            membership = (
                full_membership(run)
                if checkpoint is None or checkpoint.origin is not None
                else membership_of(
                    run, [*checkpoint.original_ranks, *checkpoint.back], verify_calls
                )
            )
            try:
                return checkpoint, membership, backend.build(membership, checkpoint, self)
            except UnusableCheckpoint as error:
                backend.refuse(error)

    def recording(self, start: Position) -> AbstractContextManager[Recorder | None]:
        rank, backend = self.backend.original_rank, self.backend
        if rank is None:
            return nullcontext()
        return open_recorder(self.experiment, rank, backend.problem, backend.work, start)

    def train(self) -> dict[str, object] | None:
        """Run the algorithm to its end, even if ranks are lost, and return the summary."""
        run, loss = self.experiment.run, None
        if not (run.record or run.algo.is_probe):  # these cannot be saved
            self.exit_stack.enter_context(stop_signals(self.ask))
        while True:
            try:
                if loss is not None:
                    self.shrink(loss)
                    loss = None  # the traceback keeps old connections open
                self.saver = self.backend.make_saver(self.observer)
                if self.saver is not None:
                    self.saver.trigger.signal = self.signal
                with nullcontext() if self.saver is None else self.saver.writer:
                    self.backend.run()
                results = self.backend.conclude(self.observer)
                break
            except LOSSES as error:
                if run.on_failure == "stop":
                    raise
                if self.backend.concluded:
                    return None
                loss = error
        if results is None or self.observer is None:
            return None
        return {**self.experiment.facts, **results, **self.observer.lost}

    def warn_of_lost_state(self) -> None:
        """Warn again, on rank 0, that the checkpoint lacks state of the algorithm."""
        observer, rank = self.observer, self.backend.original_rank
        if observer is not None and rank == 0 and observer.lost_state:
            logger.warning(
                f"{self.experiment.run.algo.title}: this run resumes without the tensors in "
                f"{quoted(observer.lost_state)}, so its results differ from those without an "
                "interruption; its summary says so."
            )

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Save and stop the run at its next step; complete the run if no step is left."""
        signal_state.asked = self.signal = number
        if self.saver is not None:
            self.saver.trigger.signal = number

    def shrink(self, loss: Exception) -> None:
        try:
            smaller, epoch = self.backend.shrink(loss)
        except (*LOSSES, Evicted):
            raise
        except Exception as error:
            if self.signal is not None:
                raise CannotSave(self.signal) from error
            raise
        if self.observer is not None:
            self.observer.follow(
                smaller,
                self.backend.problem,
                self.backend.now(),
                epoch,
                records=self.backend.original_rank == 0,
            )

    def start_of_step(self, worker: Worker) -> None:
        if self.saver is not None:
            self.saver.start_of_step(worker)

    def end_of_step(self, worker: Worker) -> None:
        if self.observer is not None:
            self.observer.end_of_step(worker)
