"""Saving a simulated run between two events, and resuming it to the last bit.

Coroutines cannot be saved, so a snapshot has three parts: every worker as it was when it last began
a step (`Worker.state_dict`), its journal since then (messages delivered, gradients and collectives
ended), and everything else as it is now. To restore, each worker starts `Algorithm.run` again from
its step and receives its journal, while none of its actions reaches the outside; in the end it
waits for what it waited for. Workers need not begin a step at the same moment and none waits for a
snapshot, so saving a run does not change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.config.experiment import Experiment
from sgp_runner.core.budget import OwnBudget
from sgp_runner.core.state import State
from sgp_runner.core.worker import Worker
from sgp_runner.recording.checkpoint import Draft, Trigger, stopped
from sgp_runner.recording.divergence import check_parameters
from sgp_runner.recording.observer import Observer
from sgp_runner.recording.unsaved_state import UnsavedState
from sgp_runner.simulator.engine import Gradient
from sgp_runner.simulator.repetition import Entry, Repetition
from sgp_runner.simulator.simulation import Simulation

STEPS_BEFORE_END = 16  # more than fast workers are ahead of slow ones


def save(simulation: Simulation, workers: Sequence[Worker]) -> State:
    """Save everything but the workers at the start of their steps, when none is ready to run."""
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
    """Bring a simulation whose workers were just made, and not started, to the snapshot."""
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
    """Repeat the journal of a worker that was just started: everything since its step began."""
    scheduler = simulation.scheduler
    scheduler.settle()
    for entry in journal:
        match entry:
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
    """Recompute a gradient whose batch BatchNorm's statistics in ``buffers`` already include."""
    buffers, gradient.buffers = gradient.buffers, [buffer.clone() for buffer in gradient.buffers]
    simulation.engine.start(gradient)
    value = simulation.engine.finish(gradient)
    gradient.buffers = buffers
    return value


class Saver:
    """Writes checkpoints of a simulated run while it continues.

    begun: steps that the gradient workers have begun.
    resumed: whether the state is that of a checkpoint.
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
        self.draft: Draft | None = None
        self.kept_last = not experiment.run.checkpoint.keep_last or (
            resumed and any(map(self.near_the_end, workers))
        )
        self.missing: set[int] = set()
        self.unsaved_state = UnsavedState(experiment.run.algo.title, simulation.scheduler)

    @property
    def steps(self) -> int:
        """Steps of the average worker."""
        return self.begun // self.simulation.size

    def start_of_step(self, worker: Worker) -> None:
        self.unsaved_state.begin(worker)
        if worker.rank < worker.size:
            self.begun += 1
        if self.draft is None:
            last = not self.kept_last and self.near_the_end(worker)
            if not last and not self.trigger.due(self.begun // worker.size):
                return
            self.observer.recorder.check()  # a checkpoint without its records is worth nothing
            self.draft = Draft(self.experiment.checkpoints, self.steps)
            self.draft.clear()
            self.missing = {each.rank for each in self.workers}
        check_parameters(worker)
        self.unsaved_state.check(worker)
        self.draft.add(f"rank{worker.rank}.pt", worker.state_dict())
        self.simulation.journals.entries[worker.rank] = []
        if worker.rank in self.missing:
            self.missing.remove(worker.rank)
            if not self.missing:
                # Before the events of now, whose numbers must not depend on checkpoints.
                clock = self.simulation.clock
                clock.at_first(clock.now, self.write, self.draft)

    def near_the_end(self, worker: Worker) -> bool:
        """Whether a longer run should continue from a state such as that of ``worker``."""
        each = self.simulation.size if self.experiment.run.algo.asynchronous else 1
        budget = worker.budget
        assert isinstance(budget, OwnBudget)
        return budget.left <= STEPS_BEFORE_END * each

    def write(self, draft: Draft) -> None:
        more = {"observer": self.observer.state_dict(), "begun": self.begun}
        draft.add("run.pt", save(self.simulation, self.workers) | more)
        # What a worker does in its last step may differ from what it would do in a longer run.
        longer = not any(worker.budget.spent for worker in self.workers)
        draft.finish(self.experiment.digest, self.experiment.run.checkpoint.keep, longer)
        self.draft = None
        self.kept_last = self.kept_last or any(map(self.near_the_end, self.workers))
        self.simulation.journals.entries.clear()
        self.trigger.saved(self.steps)
        if self.trigger.signal is not None:
            raise stopped(self.trigger.signal, draft.final)
