"""The modelled machines: processors, network and collectives on one virtual clock."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sgp_runner.cluster.churn import Absences
from sgp_runner.cluster.coding_times import Coding
from sgp_runner.cluster.timetable import Timetable
from sgp_runner.core.scheduler import Future, VirtualClock
from sgp_runner.core.state import State
from sgp_runner.simulator.collective import SimulatedCollectives, Workers
from sgp_runner.simulator.compute import (
    ComputeModel,
    Contribution,
    OwnProcessors,
    SharedProcessors,
)
from sgp_runner.simulator.compute_times import GradientTimes
from sgp_runner.simulator.engine import Engine, Gradient
from sgp_runner.simulator.fabric import Fabric, Sent, packed_events, unpacked_events
from sgp_runner.simulator.machine_model import GivenTimes, MachineModel


class ModelledMachines:
    """Machines that serve the workers' requests; their components handle the clock's events."""

    def __init__(
        self, model: MachineModel, engine: Engine, times: GivenTimes, workers: Workers
    ) -> None:
        cluster, faults = model.cluster, model.faults
        self.model, self.engine = model, engine
        self.clock = VirtualClock()
        absences = None
        if faults.churn_per_hour:
            absences = Absences(faults, model.run_seed, model.original_ranks[: model.size])
        timetable = Timetable(faults, absences)
        self.durations = GradientTimes(model, times.gradient_seconds)
        # Given times already include the contention for cores.
        shared = cluster.hosts.cores_per_host is not None and times.gradient_seconds is None
        processors = SharedProcessors if shared else OwnProcessors
        self.compute: ComputeModel = processors(
            model, self.clock, timetable, self.durations, workers.receive
        )
        self.fabric = Fabric(
            cluster.links,
            faults,
            self.clock,
            model.ranks,
            self.compute.deliver,
            model.seed,
            times.message_seconds,
            timetable,
            self.compute.on_arrival,
        )
        self.collectives = SimulatedCollectives(
            model, engine, self.clock, self.fabric, self.compute, workers
        )

        self.clock.handlers["leaves"] = self.leave

    def start_gradient(self, gradient: Gradient, contribution: Contribution | None) -> None:
        """Start a gradient, which may also be its rank's ``contribution`` to a collective."""
        self.compute.begin(gradient, contribution)
        self.engine.start(gradient)

    def abandon(self, gradient: Gradient) -> None:
        """Free the processors that compute a gradient in progress."""
        self.compute.cancel(gradient)
        self.engine.drop(gradient)

    def send(self, src: int, dst: int, tag: int, message: Tensor) -> int:
        """Send a message; return its bytes."""
        num_bytes, sent = self.model.wire.num_bytes(message), Sent(src, dst, tag, message)
        self.compute.on_send(src, num_bytes)
        if (coded := self.compute.coded_until[src]) > self.clock.now:
            self.clock.at(coded, "leaves", sent, num_bytes)
        else:
            self.fabric.transmit(sent, num_bytes)
        return round(num_bytes)

    def leave(self, sent: Sent, num_bytes: float) -> None:
        """Send a message that its sender has encoded."""
        self.fabric.transmit(sent, num_bytes)

    def coding_seconds(self, rank: int, what: Coding, codec: str, numbers: float) -> float:
        """Return the time in which ``rank`` encodes or decodes ``numbers`` of the real model."""
        model = self.model
        seconds = model.cluster.codecs.seconds(what, codec, numbers * model.wire.scale)
        slow = self.durations.slowness
        return seconds * (slow[rank] if rank < model.size else model.factor(rank))

    def code(self, rank: int, number: int, what: Coding, seconds: float) -> None:
        """Encode or decode for ``seconds`` once all earlier coding of ``rank`` has ended."""
        self.compute.code(rank, seconds, number, what)

    def collective_future(self, number: int, rank: int, gathers: bool) -> Future[Any]:
        return self.collectives.future(number, rank, gathers)

    def contribute(self, number: int, rank: int, tensor: Tensor) -> None:
        """Contribute a tensor to a collective.

        The transfer may have started early, during the last gradient (`exchange_overlap`), but not
        before the tensor was encoded.
        """
        num_bytes, now = self.model.wire.num_bytes(tensor), self.clock.now
        coded = self.compute.coded_until[rank]
        early = self.model.exchange_overlap * self.durations.mean_seconds[rank]
        self.collectives.contribute(
            number, rank, tensor, num_bytes, max(now, coded), min(early, now - coded)
        )

    def sleep(self, rank: int, number: int, seconds: float) -> None:
        """Wake a rank from its sleep ``number`` after ``seconds``."""
        end = self.fabric.times.awake(rank).clear(self.clock.now + seconds)
        self.clock.at(end, "wakes", rank, number)

    def state_dict(self) -> State:
        clock, compute = self.clock, self.compute
        events = packed_events(clock, (event for event in clock.events if event[1] >= 0))
        return {
            "clock": {"now": clock.now, "order": clock.order, "events": events},
            "fabric": self.fabric.state_dict(),
            "free_at": compute.busy_until,
            "coding": (compute.computing_until, compute.coded_until),
            "hosts": [host.state_dict() for host in compute.hosts],
            "unprocessed": [[sent.fields for sent in waiting] for waiting in compute.unprocessed],
            "randoms": self.durations.state_dict(),
            "collectives": self.collectives.state_dict(),
        }

    def load_state_dict(self, state: State, futures: dict[tuple[int, int], Future[Any]]) -> None:
        """Restore the machines; ``futures``: those of the collectives that workers await."""
        clock, compute = self.clock, self.compute
        clock.now, clock.order = state["clock"]["now"], state["clock"]["order"]
        clock.events = sorted([*clock.events, *unpacked_events(state["clock"]["events"])])
        self.fabric.load_state_dict(state["fabric"])
        compute.busy_until[:] = state["free_at"]
        for present, values in zip(
            (compute.computing_until, compute.coded_until), state.get("coding", ()), strict=False
        ):
            present[:] = values
        for host, saved in zip(compute.hosts, state["hosts"], strict=True):
            host.load_state_dict(saved)
        for waiting, messages in zip(compute.unprocessed, state["unprocessed"], strict=False):
            waiting.extend(Sent(*message) for message in messages)
        self.durations.load_state_dict(state["randoms"])
        self.collectives.load_state_dict(state["collectives"], futures)
