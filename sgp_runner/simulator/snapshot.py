"""Snapshots of a simulated run between two events, and bitwise exact resumption.

Coroutines cannot be saved, so a snapshot has three parts: the state of every worker at the start of
its current step (`Worker.state_dict`), the worker's journal since then (delivered messages,
completed gradients and collectives), and the current state of everything else. To restore, each
worker starts `Algorithm.run` again from its step and receives the events in its journal, while its
requests have no effect; then it waits for the same event as in the snapshot. Workers may begin
steps at different times and never wait for a snapshot, so saving a run does not change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from sgp_runner.algorithms import Algorithm
from sgp_runner.core.state import State
from sgp_runner.core.worker import Worker
from sgp_runner.simulator.engine import Gradient
from sgp_runner.simulator.repetition import Entry, Repetition
from sgp_runner.simulator.simulation import Simulation


def save(simulation: Simulation, workers: Sequence[Worker]) -> State:
    """Return all state except that of workers at the start of their steps; none may be ready."""
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
    """Replay the journal of a worker that has just been started, from the start of its step."""
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
                    key: parts
                    for key, parts in simulation.gradients.items()
                    if parts[2] is not future
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
