"""Periods of timing studies: repeating steps are extrapolated instead of simulated.

If compute times are constant and nothing fails, a synchronous algorithm makes the machines
periodic. `Periods` compares states (`sgp_runner.simulator.relative_state`) after rank 0 has begun a
step at which the calls of the algorithm repeat (`Algorithm.cycle`). The state of coroutines is not
visible, so a state must repeat twice. Then all whole periods but the last are removed from the
budgets of the workers, and their records are written: the times, steps and bytes of the last
simulated period plus those of the periods in between. Their push-sum weights, which converge but do
not repeat, are those of the last simulated period. The end of the run is simulated.

The search compares each state with the state at the last power of two (Brent, An improved Monte
Carlo factorization algorithm, 1980).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from sgp_runner.core.budget import OwnBudget
from sgp_runner.core.worker import Worker
from sgp_runner.simulator.relative_state import TOLERANCE, RelativeState, relative_state
from sgp_runner.simulator.simulation import Simulation
from sgp_runner.utils.messages import logger

LEAST_STEPS = 4  # between two states; a state costs about as much as a step


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a step of a worker, with the values that its record contains."""

    worker: Worker
    time: float
    step: int
    steps_taken: int
    num_bytes: int
    weight: float
    staleness: Sequence[float]


class Periods:
    """The listener of a simulation that removes repeated periods.

    cycle: steps after which the calls of the algorithm repeat
    log_every: steps between two records of a worker
    busy: returns whether a checkpoint is being written
    skipped: steps removed per worker. num_bytes: bytes that each worker would have sent in them
    """

    def __init__(
        self,
        simulation: Simulation,
        workers: Sequence[Worker],
        cycle: int,
        log_every: int,
        busy: Callable[[], bool],
    ) -> None:
        self.simulation, self.workers, self.busy = simulation, workers, busy
        self.listener = simulation.listener
        self.log_every = log_every
        self.spacing = cycle * ceil(LEAST_STEPS / cycle)
        self.searches = True
        self.states = self.skipped = 0
        self.num_bytes = [0] * len(workers)
        self.first: RelativeState | None = None
        self.second: RelativeState | None = None  # equals ``first``
        self.ends: list[StepEnd] = []  # since ``second``
        self.seen = [0] * len(workers)  # values of the staleness at the last end of a step

    def start_of_step(self, worker: Worker) -> None:
        if self.skipped:
            return  # no checkpoint: it would lack the removed steps
        self.listener.start_of_step(worker)
        if self.searches and worker.rank == 0 and worker.steps_taken % self.spacing == 0:
            clock = self.simulation.clock
            clock.at_first(clock.now * (1 + 10 * TOLERANCE), self.compare, clock.now)

    def end_of_step(self, worker: Worker) -> None:
        if self.second is not None and self.searches:
            progress = worker.progress
            self.ends.append(
                StepEnd(
                    worker,
                    self.simulation.clock.now,
                    progress.step,
                    progress.steps_taken,
                    worker.comm.num_bytes_sent,
                    worker.push_sum_weight,
                    staleness(worker)[self.seen[worker.rank] :],
                )
            )
        self.shift(worker, 1)
        self.listener.end_of_step(worker)
        self.shift(worker, -1)
        self.seen[worker.rank] = len(staleness(worker))

    def shift(self, worker: Worker, sign: int) -> None:
        """Add the removed steps and bytes to the progress of a worker, or subtract them."""
        worker.progress.step += sign * self.skipped
        worker.progress.steps_taken += sign * self.skipped
        worker.comm.num_bytes_sent += sign * self.num_bytes[worker.rank]

    def finish(self) -> None:
        """Add the removed steps to the progress of all workers, at the end of the run."""
        if not self.skipped:
            logger.info("Every step is simulated: no period was found.")
        for worker in self.workers:
            self.shift(worker, 1)

    def compare(self, time: float) -> None:
        """Compare the state of ``time`` with an earlier one; remove periods if it has repeated."""
        state = relative_state(self.simulation, self.workers, time)
        self.states += 1
        first, second = self.first, self.second
        if first is None or second is None:
            if first is not None and state.equals(first):
                self.second = state
            elif self.states.bit_count() == 1:
                self.first = state
        elif state.step - second.step == second.step - first.step:
            if state.equals(second):
                self.searches = self.busy()
                if not self.searches:
                    self.remove(second, state)
            self.first, self.second = state, None
            self.ends.clear()

    def remove(self, begin: RelativeState, end: RelativeState) -> None:
        """Remove all periods like that from ``begin`` to ``end`` except the last."""
        budgets = [worker.budget for worker in self.workers if isinstance(worker.budget, OwnBudget)]
        steps, total = end.step - begin.step, budgets[0].total
        count = min(budget.left for budget in budgets) // steps - 1
        if count < 1:
            return
        seconds, sent = end.time - begin.time, zip(begin.num_bytes, end.num_bytes, strict=True)
        num_bytes = [after - before for before, after in sent]
        self.record(count, steps, seconds, num_bytes)
        self.skipped, self.num_bytes = count * steps, [count * size for size in num_bytes]
        self.simulation.skipped_seconds = count * seconds
        for rank, before in enumerate(begin.coding_seconds):
            self.simulation.coding_seconds[rank] += count * (end.coding_seconds[rank] - before)
        for budget in budgets:
            budget.total -= self.skipped
        logger.info(
            f"Every {steps} steps repeat from step {begin.step} on: "
            f"{total - self.skipped} of {total} steps are simulated."
        )

    def record(self, count: int, steps: int, seconds: float, num_bytes: Sequence[int]) -> None:
        """Record ``count`` periods like the last, which is in ``ends``."""
        simulation, workers = self.simulation, {end.worker: None for end in self.ends}
        before = [
            (worker, worker.push_sum, replace(worker.progress), worker.comm.num_bytes_sent)
            for worker in workers
        ]
        later = [staleness(worker)[self.seen[worker.rank] :] for worker in self.workers]
        for worker, seen in zip(self.workers, self.seen, strict=True):
            del staleness(worker)[seen:]
        for period in range(1, count + 1):
            for end in self.ends:
                worker, progress = end.worker, end.worker.progress
                if end.staleness:
                    staleness(worker).extend(end.staleness)
                steps_taken = end.steps_taken + period * steps
                if steps_taken % self.log_every:
                    continue  # the listener would record nothing
                progress.step, progress.steps_taken = end.step + period * steps, steps_taken
                worker.comm.num_bytes_sent = end.num_bytes + period * num_bytes[worker.rank]
                if not worker.push_sum.is_meta:
                    worker.push_sum = worker.push_sum.new_full((1,), end.weight)
                simulation.skipped_seconds = end.time + period * seconds - simulation.clock.now
                self.listener.end_of_step(worker)
        for worker, push_sum, progress, sent in before:
            worker.push_sum, worker.comm.num_bytes_sent = push_sum, sent
            worker.progress.step, worker.progress.steps_taken = progress.step, progress.steps_taken
        for worker, values in zip(self.workers, later, strict=True):
            self.seen[worker.rank] = len(staleness(worker))
            staleness(worker).extend(values)


def staleness(worker: Worker) -> list[float]:
    """Return a worker's staleness values since its last record."""
    return worker.progress.observed.setdefault("staleness", [])
