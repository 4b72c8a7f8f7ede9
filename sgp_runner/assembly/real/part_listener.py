"""Listener for devices that do not record, with ``network.shard=state``: makes the same calls."""

from __future__ import annotations

from sgp_runner.config.run import Run
from sgp_runner.core.parts import norm
from sgp_runner.core.step_hooks import StepListener
from sgp_runner.core.worker import Worker
from sgp_runner.distributed.world import World, check_alike, checksum
from sgp_runner.recording.divergence import check_parameters
from sgp_runner.recording.observer import Grid, bytes_sent, is_recorded


class PartListener(StepListener):
    """Listener that joins the recordings and evaluations of its node's first device."""

    def __init__(self, run: Run, listener: StepListener) -> None:
        self.run, self.listener, self.grid = run, listener, Grid(run.eval_every)

    def start_of_step(self, worker: Worker) -> None:
        self.listener.start_of_step(worker)

    def end_of_step(self, worker: Worker) -> None:
        """Mirror `Observer.end_of_step` for a worker that takes its steps in sequence."""
        if is_recorded(self.run, worker):
            record_with_others(worker)
        before, now = (
            self.grid.before(steps, worker.steps_per_epoch)
            for steps in (worker.step, worker.step + 1)
        )
        due = now > before and self.grid.has(now) and not worker.budget.spent
        if due and self.run.eval_workers:
            worker.gathered(worker.own_model)


def record_with_others(worker: Worker) -> None:
    """Make the node's calls in `Observer.record_training` on a device that does not record."""
    worker.check_now()
    bytes_sent(worker)
    if worker.steps_taken:
        check_parameters(worker)


def evaluate_with_others(worker: Worker, world: World) -> None:
    """Make the node's calls in `RankBackend.evaluate` on a device that does not record."""
    if world.cut is None:
        world.mean(worker.model.clone())
        check_alike(world.gather({"checksum": checksum(worker.params)}), world.layout)
        return
    record_with_others(worker)
    bytes_sent(worker)
    worker.gathered(worker.own_model)
    mean = worker.own_model.clone()
    world.mean(mean)
    norm(worker.own_model - mean, worker.shapes)
    worker.gathered(mean)
    world.gather(None)
