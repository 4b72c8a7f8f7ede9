"""Checkpoints of a simulated run, written while it continues."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sgp_runner.config.experiment import Experiment
from sgp_runner.core.budget import OwnBudget
from sgp_runner.core.state import State
from sgp_runner.core.worker import Worker
from sgp_runner.recording.checkpoint import Trigger, stopped
from sgp_runner.recording.divergence import check_parameters
from sgp_runner.recording.draft import BackgroundWriter, Draft
from sgp_runner.recording.observer import Observer
from sgp_runner.recording.unsaved_state import UnsavedState
from sgp_runner.simulator.simulation import Simulation
from sgp_runner.simulator.snapshot import save

STEPS_BEFORE_END = 16  # more steps than fast workers are ahead of slow workers


class Saver:
    """Writer of checkpoints of a simulated run while it continues.

    begun: number of steps that the gradient workers have begun.
    resumed: whether the run was resumed from a checkpoint.
    """

    def __init__(
        self,
        experiment: Experiment,
        simulation: Simulation,
        workers: Sequence[Worker],
        begun: int,
        observer: Observer,
        resumed: bool,
    ) -> None:
        self.experiment, self.simulation, self.workers = experiment, simulation, workers
        self.begun, self.observer = begun, observer
        self.trigger = Trigger(experiment.run.checkpoint, self.steps)
        self.writer = BackgroundWriter(experiment.checkpoints)
        self.draft: Draft | None = None
        self.kept_last = not experiment.run.checkpoint.keep_last or (
            resumed and any(map(self.near_the_end, workers))
        )
        self.missing: set[int] = set()
        self.unsaved_state = UnsavedState(
            experiment.run.algo.title, simulation.scheduler, observer.unsaved
        )

    @property
    def steps(self) -> int:
        """Number of steps taken by the average worker."""
        return self.begun // self.simulation.size

    def start_of_step(self, worker: Worker) -> None:
        self.writer.check()
        self.unsaved_state.begin(worker)
        if worker.rank < worker.size:
            self.begun += 1
        if self.draft is None:
            last = not self.kept_last and self.near_the_end(worker)
            if not last and not self.trigger.due(self.begun // worker.size):
                return
            self.observer.recorder.check()  # a checkpoint is useless without its records
            self.writer.wait()
            self.draft = Draft(self.experiment.checkpoints, self.steps)
            self.draft.clear()
            self.missing = {other.rank for other in self.workers}
        check_parameters(worker)
        self.unsaved_state.check(worker)
        self.writer.add(self.draft, f"rank{worker.rank}.pt", worker.state_dict())
        self.simulation.journals.begin(worker.rank)
        if worker.rank in self.missing:
            self.missing.remove(worker.rank)
            if not self.missing:
                # Before other events of this time: their order must not depend on checkpoints.
                clock = self.simulation.clock
                clock.at_first(clock.now, self.write, self.draft)

    def near_the_end(self, worker: Worker) -> bool:
        """Return whether ``worker`` is near enough to the end for a longer run to continue."""
        sharing = self.simulation.size if self.experiment.run.algo.asynchronous else 1
        budget = worker.budget
        assert isinstance(budget, OwnBudget)
        return budget.left <= STEPS_BEFORE_END * sharing

    def write(self, draft: Draft) -> None:
        more: State = {"observer": self.observer.state_dict(), "begun": self.begun}
        more["data"] = self.observer.problem.dataset.train.state_dict()
        self.writer.add(draft, "run.pt", save(self.simulation, self.workers) | more)
        # In its last step, a worker may act differently than in a longer run.
        longer = not any(worker.budget.spent for worker in self.workers)
        keep = self.experiment.run.checkpoint.keep
        self.writer.submit(partial(draft.finish, self.experiment.digest, keep, longer))
        self.draft = None
        self.kept_last = self.kept_last or any(map(self.near_the_end, self.workers))
        self.simulation.journals.entries.clear()
        self.trigger.saved(self.steps)
        if self.trigger.signal is not None:
            self.writer.wait()
            raise stopped(self.trigger.signal, draft.final)
