"""How long gradients, received messages and collectives occupy the processors of the nodes.

`OwnProcessors`: every node computes at its own speed, and messages cost it nothing. In
`SharedProcessors` the ranks of a host share its cores (`sgp_runner.simulator.processors`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sgp_runner.cluster.timetable import Timetable
from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.core.state import State
from sgp_runner.simulator.collective import Collective, CollectiveEnds, Contribute, Reduced
from sgp_runner.simulator.compute_times import GradientTimes
from sgp_runner.simulator.engine import Gradient
from sgp_runner.simulator.fabric import Channel, Sent
from sgp_runner.simulator.machine_model import MachineModel
from sgp_runner.simulator.processors import Host, NoOp, TaskEnds

if TYPE_CHECKING:
    pass

#: The number of a collective, and the bytes of what a rank contributes to it.
Contribution = tuple[int, float]


@dataclass(slots=True)
class GradientEnds:
    """A gradient, named by its rank and step, is complete."""

    rank: int
    step: int
    kind: ClassVar[str] = "gradient ends"

    def fire(self, machines: HasCompute) -> None:
        machines.workers.on_gradient_end(self.rank, self.step)

    def state_dict(self) -> State:
        return {"rank": self.rank, "step": self.step}


@dataclass(slots=True)
class Computed:
    """The processors have computed a gradient that ``began`` then, or the part before its mean.

    joins: the collective that averages it, if there is one. left: processor seconds of the rest.
    """

    rank: int
    step: int
    began: float
    joins: Contribution | None = None
    left: float = 0.0
    kind: ClassVar[str] = "computed"

    def fire(self, machines: HasCompute) -> None:
        machines.compute.on_compute_done(self)

    def state_dict(self) -> State:
        return {
            "rank": self.rank,
            "step": self.step,
            "began": self.began,
            "joins": self.joins,
            "left": self.left,
        }


@dataclass(slots=True)
class Taken:
    """The processors have taken in a message, whose last bit arrives at ``arrival``."""

    sent: Sent
    arrival: float
    kind: ClassVar[str] = "taken"

    def fire(self, machines: HasCompute) -> None:
        machines.clock.at(max(machines.clock.now, self.arrival), self.sent)

    def state_dict(self) -> State:
        return {"sent": self.sent.fields, "arrival": self.arrival}


@dataclass(slots=True)
class Served:
    """A rank has processed a message, and all before it."""

    sent: Sent
    kind: ClassVar[str] = "served"

    def fire(self, machines: HasCompute) -> None:
        machines.compute.on_served(self.sent)

    def state_dict(self) -> State:
        return {"sent": self.sent.fields}


EVENTS: dict[str, Callable[..., Any]] = {
    GradientEnds.kind: GradientEnds,
    Computed.kind: Computed,
    Taken.kind: lambda sent, arrival: Taken(Sent(*sent), arrival),
    Served.kind: lambda sent: Served(Sent(*sent)),
    TaskEnds.kind: TaskEnds,
    NoOp.kind: NoOp,
    Reduced.kind: Reduced,
}


class Receiver(Protocol):
    """The workers, to which complete gradients and processed messages go."""

    def on_gradient_end(self, rank: int, step: int) -> None: ...
    def receive(self, sent: Sent) -> None: ...


class ComputeModel(Protocol):
    """The processors of all ranks.

    busy_until: when each node last ended a gradient or a collective, or a server ends its messages
    hosts: whose processors ranks share, if any
    """

    busy_until: list[float]
    hosts: list[Host]

    def begin(self, gradient: Gradient, contribution: Contribution | None) -> None:
        """Begin to compute a gradient, which joins a collective on the way."""

    def on_send(self, rank: int, num_bytes: float) -> None:
        """Begin to send a message."""

    def deliver(self, sent: Sent) -> None:
        """Begin to process a message that has arrived."""

    def host_seconds(self, seconds: float, num_bytes: float) -> float:
        """The part of a collective of ``seconds`` that occupies no link."""

    def reduce(self, collective: Collective, num_bytes: float) -> None:
        """Begin the processors' part of a collective that occupies the network until its end."""

    def on_compute_done(self, done: Computed) -> None: ...
    def on_served(self, sent: Sent) -> None: ...
    def state_dict(self) -> State: ...
    def load_state_dict(self, state: State) -> None: ...


class HasCompute(Protocol):
    """The machines that these events happen to."""

    @property
    def clock(self) -> VirtualClock: ...
    @property
    def compute(self) -> ComputeModel: ...
    @property
    def workers(self) -> Receiver: ...


class OwnProcessors:
    """Every node computes at its own speed, and a server processes messages one by one."""

    def __init__(
        self,
        model: MachineModel,
        clock: VirtualClock,
        timetable: Timetable,
        times: GradientTimes,
        workers: Receiver,
    ) -> None:
        self.model, self.clock, self.timetable = model, clock, timetable
        self.times, self.workers = times, workers
        self.input_share = model.cluster.input_seconds / model.step_seconds
        self.busy_until = [0.0] * model.ranks
        self.hosts: list[Host] = []

    def begin(self, gradient: Gradient, contribution: Contribution | None) -> None:
        end, joins = self.gradient_times(gradient.rank)
        if contribution is None:
            gradient.due = end
            self.clock.at(end, GradientEnds(gradient.rank, gradient.step))
        else:
            number, num_bytes = contribution
            event = Contribute(number, gradient.rank, gradient.step, num_bytes, end)
            self.clock.at(joins, event)

    def gradient_times(self, rank: int) -> tuple[float, float]:
        """When a gradient that begins now is complete, and when its all-reduce can begin.

        Loading its batch may have begun earlier.
        """
        now, free, overlap = self.clock.now, self.busy_until[rank], self.model.cluster.overlap
        seconds = self.times.draw(rank)
        loading = self.input_share * seconds
        if self.timetable.steady:
            end = max(now, free + loading) + (seconds - loading)
            return end, max(now, end - overlap * seconds)
        computing = self.timetable.computing(rank)
        begin = max(now, computing.finish(free, free + loading))
        end = begin + (seconds - loading)
        joins = max(now, end - overlap * seconds)
        return computing.finish(begin, end), computing.finish(min(begin, joins), joins)

    def on_send(self, rank: int, num_bytes: float) -> None:
        """Do nothing."""

    def deliver(self, sent: Sent) -> None:
        rank = sent.dst
        costs = self.model.cluster.serving_seconds_per_byte
        if rank < self.model.size or not costs:
            self.workers.receive(sent)
            return
        seconds = self.model.wire.num_bytes(sent.message) * costs * self.model.factor(rank)
        begin = max(self.clock.now, self.busy_until[rank])
        self.busy_until[rank] = self.timetable.computing(rank).finish(begin, begin + seconds)
        self.clock.at(self.busy_until[rank], Served(sent))

    def on_served(self, sent: Sent) -> None:
        self.workers.receive(sent)

    def host_seconds(self, seconds: float, num_bytes: float) -> float:
        return 0.0

    def reduce(self, collective: Collective, num_bytes: float) -> None:
        self.clock.at(collective.end, CollectiveEnds(collective.number))

    def on_compute_done(self, done: Computed) -> None:
        raise AssertionError("processors of its own compute no shares")

    def state_dict(self) -> State:
        return {
            "free_at": self.busy_until,
            "hosts": [],
            "unprocessed": [[] for _ in self.busy_until],
            "randoms": self.times.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.busy_until[:] = state["free_at"]
        self.times.load_state_dict(state["randoms"])


class SharedProcessors:
    """The ranks of one host compute, send and receive on the same cores."""

    def __init__(
        self,
        model: MachineModel,
        clock: VirtualClock,
        timetable: Timetable,
        times: GradientTimes,
        workers: Receiver,
    ) -> None:
        self.model, self.clock, self.timetable = model, clock, timetable
        self.times, self.workers = times, workers
        cluster = model.cluster
        assert cluster.cores_per_host is not None
        share = cluster.ranks_per_host or model.ranks
        self.busy_until = [0.0] * model.ranks
        self.hosts = [
            Host(number, cluster.cores_per_host, clock)
            for number in range(max(model.original_ranks) // share + 1)
        ]
        self.host_of = [self.hosts[rank // share] for rank in model.original_ranks]
        # Messages that each rank still has to process, the first of which its processors work on.
        self.unprocessed: list[deque[Sent]] = [deque() for _ in range(model.ranks)]

    def passing_seconds(self, num_bytes: float) -> float:
        """Processor seconds of sending or receiving so many bytes."""
        return self.model.cluster.passing_seconds_per_byte * num_bytes

    def begin(self, gradient: Gradient, contribution: Contribution | None) -> None:
        rank, seconds = gradient.rank, self.times.draw(gradient.rank)
        left = 0.0 if contribution is None else self.model.cluster.overlap * seconds
        done = Computed(rank, gradient.step, self.clock.now, contribution, left)
        self.host_of[rank].begin(seconds - left, done)

    def on_compute_done(self, done: Computed) -> None:
        """End a gradient, or let it join; slow nodes and pauses delay that."""
        rank, step, now = done.rank, done.step, self.clock.now
        end = self.timetable.computing(rank).finish(done.began, now)
        if done.joins is None:
            self.clock.at(end, GradientEnds(rank, step))
            return
        ready, overlap = end, self.model.cluster.overlap
        if done.left:
            # The rest continues at the same rate while the mean is under way.
            ready += (end - done.began) * overlap / (1 - overlap)
            self.host_of[rank].begin(done.left, NoOp())
        number, num_bytes = done.joins
        self.clock.at(end, Contribute(number, rank, step, num_bytes, ready))

    def on_send(self, rank: int, num_bytes: float) -> None:
        self.host_of[rank].begin(self.passing_seconds(num_bytes), NoOp())

    def on_arrival(self, sent: Sent, channel: Channel, arrival: float) -> None:
        """Take a message in as it arrives, not before the last one of its stream."""
        seconds = self.passing_seconds(self.model.wire.num_bytes(sent.message))
        host = self.host_of[sent.dst]
        channel.taken = host.begin(seconds, Taken(sent, arrival), channel.taken)

    def deliver(self, sent: Sent) -> None:
        self.unprocessed[sent.dst].append(sent)
        if len(self.unprocessed[sent.dst]) == 1:
            self.process(sent.dst)

    def process(self, rank: int) -> None:
        """Begin to process the first message that ``rank`` has received."""
        model, sent = self.model, self.unprocessed[rank][0]
        costs = model.cluster.mixing_seconds_per_byte
        if rank >= model.size:
            costs = model.cluster.serving_seconds_per_byte * model.factor(rank)
        self.host_of[rank].begin(costs * model.wire.num_bytes(sent.message), Served(sent))

    def on_served(self, sent: Sent) -> None:
        waiting = self.unprocessed[sent.dst]
        waiting.popleft()
        if waiting:
            self.process(sent.dst)
        self.workers.receive(sent)

    def host_seconds(self, seconds: float, num_bytes: float) -> float:
        return max(0.0, seconds - num_bytes * 8 / self.model.cluster.bandwidth)

    def reduce(self, collective: Collective, num_bytes: float) -> None:
        seconds = self.passing_seconds(2 * num_bytes)  # each rank sends and receives so many
        collective.unreduced = self.model.size
        for host in self.host_of[: self.model.size]:
            host.begin(seconds, Reduced(collective.number))

    def state_dict(self) -> State:
        return {
            "free_at": self.busy_until,
            "hosts": [host.state_dict() for host in self.hosts],
            "unprocessed": [[sent.fields for sent in waiting] for waiting in self.unprocessed],
            "randoms": self.times.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.busy_until[:] = state["free_at"]
        for host, saved in zip(self.hosts, state["hosts"], strict=True):
            host.load_state_dict(saved, EVENTS)
        for waiting, messages in zip(self.unprocessed, state["unprocessed"], strict=True):
            waiting.extend(Sent(*message) for message in messages)
        self.times.load_state_dict(state["randoms"])
