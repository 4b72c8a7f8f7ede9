"""Going on without workers that are gone for good (``on_failure=continue``), the same in simulated
and in real runs.

1. The survivors agree on who is left. That takes `VOTE_SECONDS`: who does not answer by then
is gone.
2. Each drops the step it is in and goes back to where it was between two steps (`step_snapshot`).
What was on its way is lost.
3. They form a smaller run (`Membership`): as if it had been configured for them alone, ranks counted
   anew, so that graphs, data and learning rates are those of so many nodes, and proved for them.
4. All go on from the epoch of the one that is furthest behind, each from its own model, with
   push-sum weight 1: the model is the numerator over the weight, so this is what makes the mass of
   the survivors their number again. Asynchronous workers share what is left of the budget. With a
   parameter server everybody goes on from its model.

Momentum stays. Of the named state tensors stay (what SlowMo goes back to); counts and lists, of
what is under way, start anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgp_runner.utils.errors import ConfigError, RankFailed

if TYPE_CHECKING:
    from sgp_runner.config.run import Run
    from sgp_runner.core.state import State
    from sgp_runner.core.worker import Worker

VOTE_SECONDS = 5.0


@dataclass(frozen=True)
class Membership:
    """Those who take part. run: as if it had been configured for them. names: the rank at the start
    of the run of what is now rank i.
    """

    run: Run
    original_ranks: tuple[int, ...]

    def lost(self, run: Run) -> list[int]:
        """The original ranks of ``run`` that are not here any more."""
        return sorted({*range(run.ranks)} - {*self.original_ranks})

    def without(self, gone: Sequence[int]) -> Membership:
        """Those left when the present ranks ``gone`` are. Raises RankFailed where they cannot go
        on.
        """
        from sgp_runner.elastic.dry_run import verify_calls

        if not gone:
            return self
        run = self.run
        left = [rank for rank in range(run.ranks) if rank not in gone]
        words = f"{listed([self.original_ranks[rank] for rank in sorted(gone)])} gone for good"
        if any(rank >= run.nodes for rank in gone):
            raise RankFailed(f"{words}, with the model of all: that was the parameter server.")
        if len(left) == run.algo.servers:
            raise RankFailed(f"{words}, and nobody is left.")
        try:
            smaller = run.among(left)
            verify_calls(smaller)
        except ConfigError as error:
            raise RankFailed(f"{words}, and the others cannot go on: {error}") from error
        return Membership(smaller, tuple(self.original_ranks[rank] for rank in left))


def full_membership(run: Run) -> Membership:
    return Membership(run, tuple(range(run.ranks)))


def membership_of(run: Run, names: Sequence[int]) -> Membership:
    return full_membership(run).without([rank for rank in range(run.ranks) if rank not in names])


def listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'}"


def step_snapshot(worker: Worker) -> State:
    """A copy of a worker at the start of a step. What is under way stays out: messages, and named
    state that is no tensor.
    """
    from torch import Tensor

    state = worker.state_dict()
    state["state"] = {
        name: value for name, value in worker.state.items() if isinstance(value, Tensor)
    }
    state["comm"] = {"mailbox": [], "collectives": 0}
    return deepcopy(state)


def common_epoch(run: Run, own: Sequence[float], shared: float) -> float:
    """From which all go on. own: of each survivor at rest, servers last. shared: of a shared
    budget, without what they dropped.
    """
    if not run.algo.asynchronous:
        return min(*own, run.epochs)
    return min(
        own[-1] if run.algo.servers else shared, run.epochs
    )  # a server has used so many gradients


def take_over(worker: Worker, snapshot: State, num_bytes_sent: int, epoch: float) -> None:
    """Bring a worker that was made for the smaller run, and has not started, to the step of its
    ``snapshot``, in ``epoch``.
    """
    taken = round(epoch * worker.steps_per_epoch)
    place = {
        "taken": taken,
        "step": taken - 1,
        "gradients": round(epoch * worker.horizon.steps_per_epoch),
    }
    worker.load_state_dict(snapshot | place | {"num_bytes_sent": num_bytes_sent, "observed": {}})
    worker.push_sum[-1] = 1
