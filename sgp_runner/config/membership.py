"""Recovery from the loss of workers (``on_failure=continue``), in simulated and real runs.

1. The survivors agree on who is left. Ranks that do not answer within `VOTE_SECONDS` are lost. Rank
   0 keeps the records, so the run ends if rank 0 is lost.
2. Each survivor drops its current step and returns to its state between two steps
   (`step_snapshot`). Messages in flight are lost.
3. The survivors form a smaller run (`Membership`) with its own configuration. Its ranks are
   numbered from 0, so graphs, data and learning rates fit the new number of nodes. A dry run
   verifies its calls.
4. All survivors continue from the epoch of the slowest survivor. Each keeps its model (numerator
   over weight) and resets its push-sum weight to 1, so the total weight equals the number of
   survivors. Asynchronous workers share the rest of the budget. With a parameter server, all
   survivors continue from the server's model.

If a real run is resumed later, all its ranks take part again. Lost ranks rejoin with the state of
rank 0, and all ranks continue as in step 4.

Momentum and named state tensors (such as the point that SlowMo returns to) are preserved. Counts
and lists of pending work are reset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgp_runner.config.run import Run
from sgp_runner.utils.errors import ConfigError, RankFailed

Verify = Callable[[Run], object]


@dataclass(frozen=True)
class Membership:
    """The ranks that take part in a run.

    run: the run, configured for only these ranks
    original_ranks: the rank that each member had at the start of the run
    """

    run: Run
    original_ranks: tuple[int, ...]

    def lost(self, run: Run) -> list[int]:
        """Return the original ranks of ``run`` that are no longer members."""
        return sorted({*range(run.ranks)} - {*self.original_ranks})

    def without(self, gone: Sequence[int], verify: Verify) -> Membership:
        """Return the membership without the ranks ``gone``, which use the present numbering.

        verify: raises ConfigError if the calls of the remaining ranks do not fit together

        Raises RankFailed if the remaining ranks cannot continue.
        """
        if not gone:
            return self
        run = self.run
        left = [rank for rank in range(run.ranks) if rank not in gone]
        event = f"{listed([self.original_ranks[rank] for rank in sorted(gone)])} lost"
        if 0 in gone:
            raise RankFailed(f"{event}; the run needs rank 0, which writes the records.")
        if any(rank >= run.nodes for rank in gone):
            raise RankFailed(f"{event}; the run needs the parameter server.")
        try:
            smaller = run.subset(left)
            verify(smaller)
        except ConfigError as error:
            raise RankFailed(f"{event}, and the others cannot continue: {error}") from error
        return Membership(smaller, tuple(self.original_ranks[rank] for rank in left))


def full_membership(run: Run) -> Membership:
    return Membership(run, tuple(range(run.ranks)))


def membership_of(run: Run, names: Sequence[int], verify: Verify) -> Membership:
    gone = [rank for rank in range(run.ranks) if rank not in names]
    return full_membership(run).without(gone, verify)


def listed(ranks: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"ranks {numbers} are" if len(ranks) > 1 else f"rank {numbers} is"


def common_epoch(run: Run, epochs: Sequence[float], shared: float) -> float:
    """Return the epoch from which all survivors continue.

    epochs: epoch of each survivor at its last completed step, servers last
    shared: epoch of a shared budget; dropped steps are not counted
    """
    if not run.algo.asynchronous:
        return min(*epochs, run.epochs)
    # The epoch of a server counts the gradients that it has used.
    return min(epochs[-1] if run.algo.servers else shared, run.epochs)
