"""Saving a simulated run between two events, and resuming it to the last bit.

Coroutines cannot be saved, so a snapshot has three parts: the state of every worker at the start of
its present step (`Worker.state_dict`), the worker's journal since then (delivered messages, ended
gradients and collectives), and the present state of everything else. To restore, each worker starts
`Algorithm.run` again from its step and receives the events in its journal, while its requests have
no effect; then it waits for the same event as in the snapshot. Workers may begin steps at different
times and never wait for a snapshot, so saving a run does not change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.budget import OwnBudget
from sgp_runner.core.state import State
from sgp_runner.core.worker import Worker
from sgp_runner.recording.checkpoint import Trigger, stopped
from sgp_runner.recording.divergence import check_parameters
from sgp_runner.recording.draft import BackgroundWriter, Draft
from sgp_runner.recording.observer import Observer
from sgp_runner.recording.unsaved_state import UnsavedState
from sgp_runner.simulator.engine import Gradient
from sgp_runner.simulator.repetition import Entry, Repetition
from sgp_runner.simulator.simulation import Simulation

STEPS_BEFORE_END = 16  # more steps than fast workers are ahead of slow workers


def save(simulation: Simulation, workers: Sequence[Worker]) -> State:
    """Return all state but the workers' at the start of their steps; no worker may be ready."""
    return {
        "simulation": simulation.state_dict(),
        "journals": [simulation.journals.entries[worker.rank] for worker in workers],
        "side_effects": [worker.side_effects() for worker in workers],
    }


def restore(
    simulation: Simulation,
    workers: Sequence[Worker],
    algo: Algorithm,
    at_steps: Iterable[State],
    saved: State,
) -> None:
    """Restore a snapshot in a new simulation whose workers have not started."""
    with simulation.repeating() as repetition:
        for worker, at_step, journal in zip(workers, at_steps, saved["journals"], strict=True):
            worker.load_state_dict(at_step)
            repetition.expect(worker)
            simulation.start(worker, algo.run(worker))
            repeat(simulation, repetition, worker.rank, journal)
    simulation.load_state_dict(saved["simulation"], repetition)
    for worker, side_effects in zip(workers, saved["side_effects"], strict=True):
        worker.load_side_effects(side_effects)


def repeat(
    simulation: Simulation, repetition: Repetition, rank: int, journal: Sequence[Entry]
) -> None:
    """Replay the journal of a worker that was just started: all events since its step began."""
    scheduler, clock = simulation.scheduler, simulation.clock
    clock.now = next((seconds for kind, seconds, *_ in journal if kind == "time"), 0.0)
    scheduler.settle()
    for entry in journal:
        match entry:
            case "time", seconds:
                clock.now = seconds
            case "deliver", src, tag, message:
                simulation.mailboxes[rank].deliver(src, tag, message)
            case "gradient", step:
                _, gradient, future = simulation.gradients.pop((rank, step))
                scheduler.resolve(future, recomputed(simulation, gradient))
            case "sleep", number:
                scheduler.resolve(simulation.sleeps.pop((rank, number)), None)
            case "collective", number, outcome:
                future = repetition.futures.pop((rank, number))
                simulation.gradients = {
                    key: each for key, each in simulation.gradients.items() if each[2] is not future
                }
                scheduler.resolve(future, outcome)
        scheduler.settle()


def recomputed(simulation: Simulation, gradient: Gradient) -> Tensor:
    """Recompute a gradient without changing its ``buffers``, which already include its batch."""
    buffers, gradient.buffers = gradient.buffers, [buffer.clone() for buffer in gradient.buffers]
    simulation.engine.start(gradient)
    value = simulation.engine.finish(gradient)
    gradient.buffers = buffers
    return value


class Saver:
    """Writes checkpoints of a simulated run while it continues.

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
        """Steps of the average worker."""
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
            self.missing = {each.rank for each in self.workers}
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
        """Whether ``worker`` is so near the end that a longer run can continue from its state."""
        each = self.simulation.size if self.experiment.run.algo.asynchronous else 1
        budget = worker.budget
        assert isinstance(budget, OwnBudget)
        return budget.left <= STEPS_BEFORE_END * each

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
