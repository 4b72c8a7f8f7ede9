"""The modelled machines: processors, network and collectives on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sgp_runner.cluster.churn import Absences
from sgp_runner.cluster.timetable import Timetable
from sgp_runner.core.scheduler import Future, VirtualClock
from sgp_runner.core.state import State
from sgp_runner.simulator import collective, compute
from sgp_runner.simulator.collective import Participants, SimulatedCollectives
from sgp_runner.simulator.compute import (
    ComputeModel,
    Contribution,
    OwnProcessors,
    Receiver,
    SharedProcessors,
)
from sgp_runner.simulator.compute_times import GradientTimes
from sgp_runner.simulator.engine import Engine, Gradient
from sgp_runner.simulator.fabric import Cross, Fabric, Reach, Sent
from sgp_runner.simulator.machine_model import GivenTimes, MachineModel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Wakes:
    """The sleep ``number`` of a rank ends."""

    rank: int
    number: int
    kind: ClassVar[str] = "wakes"

    def fire(self, machines: ModelledMachines) -> None:
        machines.workers.on_wake(self.rank, self.number)

    def state_dict(self) -> State:
        return {"rank": self.rank, "number": self.number}


EVENTS: dict[str, Callable[..., Any]] = {
    **collective.EVENTS,
    **compute.EVENTS,
    Reach.kind: lambda sent, seconds, late: Reach(Sent(*sent), seconds, late),
    Cross.kind: lambda sent, **values: Cross(Sent(*sent), **values),
    Sent.kind: lambda sent: Sent(*sent),
    Wakes.kind: Wakes,
}


class SimulatedWorkers(Receiver, Participants, Protocol):
    """The workers, as the machines see them."""

    def on_wake(self, rank: int, number: int) -> None: ...


class ModelledMachines:
    """Start what workers request; events of the clock happen to it."""

    def __init__(
        self, model: MachineModel, engine: Engine, times: GivenTimes, workers: SimulatedWorkers
    ) -> None:
        cluster, faults = model.cluster, model.faults
        self.model, self.engine, self.workers = model, engine, workers
        self.clock = VirtualClock(self)
        absences = None
        if faults.churn_per_hour:
            absences = Absences(faults, model.run_seed, model.original_ranks[: model.size])
        timetable = Timetable(faults, absences)
        durations = GradientTimes(model, times.gradient_seconds)
        processors = (self.clock, timetable, durations, workers)
        on_arrival = None
        self.compute: ComputeModel
        # Given times already contain what ranks took from each other.
        if cluster.cores_per_host is not None and times.gradient_seconds is None:
            self.compute = shared = SharedProcessors(model, *processors)
            on_arrival = shared.on_arrival
        else:
            self.compute = OwnProcessors(model, *processors)
        self.hosts = self.compute.hosts
        self.fabric = Fabric(
            cluster,
            faults,
            self.clock,
            model.ranks,
            self.compute.deliver,
            model.seed,
            times.message_seconds,
            timetable,
            on_arrival,
        )
        self.collectives = SimulatedCollectives(
            model, engine, self.clock, self.fabric, self.compute, workers
        )
        self.overlap_seconds = [
            model.exchange_overlap * seconds for seconds in durations.mean_seconds
        ]

    def start_gradient(self, gradient: Gradient, contribution: Contribution | None) -> None:
        """Compute a gradient, of which a collective may form the mean."""
        self.compute.begin(gradient, contribution)
        self.engine.start(gradient)

    def send(self, src: int, dst: int, tag: int, message: Tensor) -> int:
        """Send a message; return its bytes."""
        num_bytes = self.model.wire.num_bytes(message)
        self.compute.on_send(src, num_bytes)
        self.fabric.transmit(Sent(src, dst, tag, message), num_bytes)
        return round(num_bytes)

    def collective_future(self, number: int, rank: int, gathers: bool) -> Future[Any]:
        return self.collectives.future(number, rank, gathers)

    def contribute(self, number: int, rank: int, tensor: Tensor) -> None:
        """Contribute a tensor to a collective.

        It may have begun to be sent while the gradient that has changed it was computed.
        """
        num_bytes, now = self.model.wire.num_bytes(tensor), self.clock.now
        early = self.overlap_seconds[rank]
        self.collectives.contribute(number, rank, tensor, num_bytes, now, early)

    def sleep(self, rank: int, number: int, seconds: float) -> None:
        """Wake a rank from its sleep ``number`` after so many seconds."""
        end = self.fabric.times.awake(rank).clear(self.clock.now + seconds)
        self.clock.at(end, Wakes(rank, number))

    def state_dict(self) -> State:
        return {
            "clock": self.clock.state_dict(),
            "fabric": self.fabric.state_dict(),
            **self.compute.state_dict(),
            "collectives": self.collectives.state_dict(),
        }

    def load_state_dict(self, state: State, futures: dict[tuple[int, int], Future[Any]]) -> None:
        """Restore the machines; ``futures`` of collectives are those that workers wait for."""
        self.clock.load_state_dict(state["clock"], EVENTS)
        self.fabric.load_state_dict(state["fabric"])
        self.compute.load_state_dict(state)
        self.collectives.load_state_dict(state["collectives"], futures)
