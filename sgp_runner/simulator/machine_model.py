"""Models of the machines of a simulation, from the settings of a run or from a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.cluster.timed_as import Wire
from sgp_runner.utils.seeding import seed_of

_MEMBERS = 205  # stream of random numbers


@dataclass(frozen=True)
class MachineModel:
    """The machines of a run.

    size: number of gradient workers. servers: number of further ranks, outside of collectives.
    run_seed: seed of the run, which determines the speeds of nodes.
    step_seconds: mean time of a gradient. wire: sizes of messages.
    exchange_overlap: the cluster's overlap for the algorithm's exchanges.
    names: original ranks of the remaining ranks, if ranks have been lost.
    """

    cluster: Cluster
    faults: Faults
    size: int
    servers: int
    run_seed: int
    step_seconds: float
    wire: Wire
    exchange_overlap: float = 0.0
    names: Sequence[int] | None = None

    @property
    def ranks(self) -> int:
        return self.size + self.servers

    @cached_property
    def original_ranks(self) -> tuple[int, ...]:
        return tuple(self.names or range(self.ranks))

    @cached_property
    def seed(self) -> int:
        """The seed of compute times and messages, which changes when ranks are lost."""
        if self.original_ranks == tuple(range(self.ranks)):
            return self.run_seed
        return seed_of(self.run_seed, _MEMBERS, *self.original_ranks)

    def factor(self, rank: int) -> float:
        """Return the slowdown factor of work on ``rank``; 1 for a normal rank."""
        return self.cluster.compute.node_factors.get(rank, 1.0)


@dataclass(frozen=True)
class GivenTimes:
    """Times that replace modelled times, for example from a recording.

    step_seconds: mean time of a gradient; None: the cluster's time for the model.
    gradient_seconds: returns the duration of a rank's next gradient, including contention between
        ranks of one host.
    message_seconds: returns the travel time for a sender, receiver and number of bytes.
    """

    step_seconds: float | None = None
    gradient_seconds: Callable[[int], float] | None = None
    message_seconds: Callable[[int, int, float], float] | None = None


MODELLED = GivenTimes()
