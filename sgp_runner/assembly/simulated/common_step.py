"""States of simulated workers at the start of one step.

Workers in a checkpoint are at different steps (`sgp_runner.simulator.snapshot`). The simulation
continues until all have begun the latest of these steps, and then until all have reached the start
of a later one, which shows whether messages are in flight between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from sgp_runner.core.state import State
from sgp_runner.core.worker import Worker
from sgp_runner.simulator.simulation import Simulation
from sgp_runner.utils.errors import RankFailed


class Waits(RuntimeError):
    """Exception that ends a worker at the start of a step."""


class StateCollector:
    """Listener that copies the states of workers at the start of ``step``.

    A worker is ended at the start of step ``last``.

    states: states by rank. waiting: number of ended workers
    """

    def __init__(self, step: int, last: int, states: dict[int, State]) -> None:
        self.step, self.last, self.states = step, last, states
        self.waiting = 0

    def start_of_step(self, worker: Worker) -> None:
        if worker.step + 1 == self.step:
            self.states[worker.rank] = deepcopy(worker.state_dict())
        if worker.step + 1 == self.last:
            self.waiting += 1
            raise Waits

    def end_of_step(self, worker: Worker) -> None:
        """Do nothing."""


def states_at_common_step(
    simulation: Simulation, workers: Sequence[Worker], at_steps: Sequence[State]
) -> list[State]:
    """Run a restored synchronous simulation; return the states of its workers at one step.

    at_steps: the states of the workers in the checkpoint
    """
    step = max(state["step"] for state in at_steps) + 1
    last = max(worker.step for worker in workers) + 1
    states = {rank: state for rank, state in enumerate(at_steps) if state["step"] + 1 == step}
    listener = StateCollector(step, last, states)
    simulation.listener = listener
    while True:
        try:
            simulation.scheduler.run_until(lambda: listener.waiting == len(workers))
            break
        except RankFailed as error:
            if not isinstance(error.__cause__, Waits):
                raise
    simulation.scheduler.close()
    unread = [message for box in simulation.mailboxes for message in box.unread()]
    mailbox = ["in flight"] if unread or simulation.fabric.in_flight else []
    return [listener.states[worker.rank] | {"comm": {"mailbox": mailbox}} for worker in workers]
