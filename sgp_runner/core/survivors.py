"""Loss of workers: time limits, and the state that the survivors preserve.

`sgp_runner.config.membership` describes the recovery.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from sgp_runner.core.state import State
from sgp_runner.core.worker import Worker

VOTE_SECONDS = 5.0  # default of real runs; the simulator always uses it
SILENCE_SECONDS = 30.0


@dataclass(frozen=True)
class LossDetection:
    """Time limits after which ranks of a real run consider another rank lost.

    vote_seconds: longest wait for the replies of other ranks; a rank that does not reply is lost
    silence_seconds: longest time without a heartbeat while another rank waits. gloo does not report
        a lost peer to a rank that only receives, so heartbeats are needed
    """

    vote_seconds: float = VOTE_SECONDS
    silence_seconds: float = SILENCE_SECONDS


def step_snapshot(worker: Worker) -> State:
    """Return a copy of the worker's state that recovery preserves, at the start of a step."""
    return deepcopy(vectors_of(worker.state_dict()))


def vectors_of(state: State) -> State:
    """Return a worker's state without pending messages and without named state except tensors."""
    from torch import Tensor

    from sgp_runner.core.zeros import Zeros

    vectors = {
        name: value for name, value in state["state"].items() if isinstance(value, Tensor | Zeros)
    }
    return {**state, "state": vectors, "comm": {"mailbox": [], "collectives": 0}}


def take_over(worker: Worker, snapshot: State, num_bytes_sent: int, epoch: float) -> None:
    """Load ``snapshot`` into a new worker of the smaller run, which continues from ``epoch``."""
    steps = round(epoch * worker.steps_per_epoch)
    position = {
        "taken": steps,
        "step": steps - 1,
        "gradients": round(epoch * worker.horizon.steps_per_epoch),
    }
    worker.load_state_dict(snapshot | position | {"num_bytes_sent": num_bytes_sent, "observed": {}})
    worker.push_sum[-1] = 1
