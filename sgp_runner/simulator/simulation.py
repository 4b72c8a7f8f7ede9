"""A run in simulated time: every worker in one process, real gradients, modelled machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sgp_runner.cluster.churn import Absences
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.machines import Cluster
from sgp_runner.cluster.timed_as import Wire
from sgp_runner.core.comm import Comm, Transport
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.scheduler import Deadlock, Future, Scheduler, VirtualClock
from sgp_runner.core.state import State, futures_in
from sgp_runner.core.worker import SILENT, StepListener, activity_name
from sgp_runner.elastic.membership import VOTE_SECONDS, step_snapshot
from sgp_runner.simulator.collective import Collective
from sgp_runner.simulator.compute_times import ComputeTimes
from sgp_runner.simulator.engine import Engine, Gradient, NoGradients
from sgp_runner.simulator.fabric import Channel, Cross, Fabric, Reach, Sent
from sgp_runner.simulator.processors import Host, Nothing, TaskEnds
from sgp_runner.utils.errors import Lost
from sgp_runner.utils.memory import few_collections
from sgp_runner.utils.seeding import seed_of

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.core.worker import Worker

T = TypeVar("T")
# One entry of a journal: ("deliver", src, tag, message) | ("gradient", step) |
# ("collective", number, value) | ("sleep", number).
Entry = tuple[Any, ...]

_COMPUTE, _NODE, _MEMBERS = 201, 202, 205  # streams of random numbers
ITS_GRADIENT = ("its gradient",)  # what a worker waits for


# Events of the machines. A gradient is named by its rank and step.


@dataclass(slots=True)
class GradientEnds:
    rank: int
    step: int
    kind: ClassVar[str] = "gradient ends"

    def fire(self, machines: Simulation) -> None:
        machines.end_gradient(self.rank, self.step)

    def state_dict(self) -> State:
        return {"rank": self.rank, "step": self.step}


@dataclass(slots=True)
class Computed:
    """The processors have computed a gradient that ``began`` then, or the part before its mean.

    joins: the number and the bytes of the collective that averages it, if there is one. left:
        processor seconds of the rest.
    """

    rank: int
    step: int
    began: float
    joins: tuple[int, float] | None = None
    left: float = 0.0
    kind: ClassVar[str] = "computed"

    def fire(self, machines: Simulation) -> None:
        machines.computed(self)

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

    def fire(self, machines: Simulation) -> None:
        machines.clock.at(max(machines.clock.now, self.arrival), self.sent)

    def state_dict(self) -> State:
        return {"sent": self.sent.fields, "arrival": self.arrival}


@dataclass(slots=True)
class Reduced:
    """The processors of a rank have done their part of the collective ``number``."""

    number: int
    kind: ClassVar[str] = "reduced"

    def fire(self, machines: Simulation) -> None:
        machines.reduced(self.number)

    def state_dict(self) -> State:
        return {"number": self.number}


@dataclass(slots=True)
class Joins:
    """A gradient, complete at ``ready``, starts to be averaged in the collective ``number``."""

    number: int
    rank: int
    step: int
    num_bytes: float
    ready: float
    kind: ClassVar[str] = "joins"

    def fire(self, machines: Simulation) -> None:
        _, gradient, _ = machines.gradients.pop((self.rank, self.step))
        machines.join(self.number, self.rank, gradient, self.num_bytes, self.ready)

    def state_dict(self) -> State:
        return {
            "number": self.number,
            "rank": self.rank,
            "step": self.step,
            "num_bytes": self.num_bytes,
            "ready": self.ready,
        }


@dataclass(slots=True)
class CollectiveEnds:
    number: int
    kind: ClassVar[str] = "collective ends"

    def fire(self, machines: Simulation) -> None:
        machines.end_collective(self.number)

    def state_dict(self) -> State:
        return {"number": self.number}


@dataclass(slots=True)
class Served:
    """A rank has processed a message, and all before it."""

    sent: Sent
    kind: ClassVar[str] = "served"

    def fire(self, machines: Simulation) -> None:
        machines.served(self.sent)

    def state_dict(self) -> State:
        return {"sent": self.sent.fields}


@dataclass(slots=True)
class Wakes:
    """The sleep ``number`` of a rank ends."""

    rank: int
    number: int
    kind: ClassVar[str] = "wakes"

    def fire(self, machines: Simulation) -> None:
        machines.wake(self.rank, self.number)

    def state_dict(self) -> State:
        return {"rank": self.rank, "number": self.number}


@dataclass(slots=True)
class Death:
    """Ranks have crashed permanently, and the others have noticed."""

    ranks: Sequence[int]
    kind: ClassVar[str] = "death"

    def fire(self, machines: Simulation) -> None:
        raise Lost(self.ranks)

    def state_dict(self) -> State:
        return {"ranks": list(self.ranks)}


EVENTS: dict[str, Callable[..., Any]] = {
    GradientEnds.kind: GradientEnds,
    Joins.kind: Joins,
    Computed.kind: Computed,
    Taken.kind: lambda sent, arrival: Taken(Sent(*sent), arrival),
    Reduced.kind: Reduced,
    TaskEnds.kind: TaskEnds,
    Nothing.kind: Nothing,
    CollectiveEnds.kind: CollectiveEnds,
    Reach.kind: lambda sent, seconds, late: Reach(Sent(*sent), seconds, late),
    Cross.kind: lambda sent, **values: Cross(Sent(*sent), **values),
    Sent.kind: lambda sent: Sent(*sent),
    Served.kind: lambda sent: Served(Sent(*sent)),
    Wakes.kind: Wakes,
}


class Simulation:
    """The machines: a scheduler on a virtual clock, a fabric, mailboxes, and a gradient engine.

    size: gradient workers. servers: further ranks, which take no part in collectives.
    seed: of compute times and messages.
    wire: sizes of messages. exchange_overlap: that of the cluster for the algorithm's exchanges.
    names: original ranks of the present ranks, where some have been lost.
    listener: notified of the start and end of each step.
    gradient_seconds: duration of the next gradient of a rank, where that is known.
    message_seconds: as `Fabric.seconds_of`.
    wrap: wraps the transport of each worker.
    survives: whether the others continue after permanent crashes; then `run` raises Lost, and every
        worker keeps a snapshot of its present step.
    """

    def __init__(
        self,
        cluster: Cluster,
        faults: Faults,
        engine: Engine,
        *,
        size: int,
        servers: int,
        seed: int,
        step_seconds: float,
        wire: Wire,
        exchange_overlap: float = 0.0,
        names: Sequence[int] | None = None,
        gradient_seconds: Callable[[int], float] | None = None,
        message_seconds: Callable[[int, int, float], float] | None = None,
        survives: bool = False,
        wrap: Callable[[Transport], Transport] = lambda transport: transport,
        listener: StepListener = SILENT,
    ) -> None:
        from numpy.random import default_rng

        nodes, names = seed, names or range(size + servers)
        if tuple(names) != (*range(size + servers),):
            seed = seed_of(seed, _MEMBERS, *names)
        self.cluster, self.faults, self.engine = cluster, faults, engine
        self.size, self.wire = size, wire
        self.clock = VirtualClock(self)
        self.scheduler = Scheduler(self.clock)
        # Recorded times contain what ranks took from each other.
        self.shares = cluster.cores_per_host is not None and gradient_seconds is None
        self.fabric = Fabric(
            cluster,
            faults,
            self.clock,
            size + servers,
            self.deliver,
            seed,
            message_seconds,
            Absences(faults, nodes, names[:size]) if faults.churn_per_hour else None,
            self.take if self.shares else None,
        )
        self.mailboxes = [Mailbox(self.scheduler) for _ in range(size + servers)]
        self.comms = [
            Comm(mailbox, wrap(SimulatedTransport(rank, self)))
            for rank, mailbox in enumerate(self.mailboxes)
        ]
        spread = cluster.heterogeneity**-2 if cluster.heterogeneity else 0.0
        own = [
            default_rng(seed_of(nodes, _NODE, names[rank])).gamma(spread, 1 / spread)
            if spread
            else 1.0
            for rank in range(size)
        ]
        self.mean_seconds = [
            step_seconds * float(own[rank]) * cluster.node_factors.get(rank, 1.0)
            for rank in range(size)
        ]
        self.compute_times = [
            ComputeTimes(cluster.compute_time, mean, default_rng(seed_of(seed, _COMPUTE, rank)))
            for rank, mean in enumerate(self.mean_seconds)
        ]
        self.lead = [exchange_overlap * seconds for seconds in self.mean_seconds]
        self.gradient_seconds = gradient_seconds or self.sampled_seconds
        self.input_share = cluster.input_seconds / step_seconds
        # When each node last ended a gradient or a collective, or a server ends its messages.
        self.free_at = [0.0] * (size + servers)
        # Empty where every node computes at its own speed.
        self.hosts: list[Host] = []
        if self.shares:
            assert cluster.cores_per_host is not None
            share = cluster.ranks_per_host or len(names)
            self.hosts = [
                Host(number, cluster.cores_per_host, self.clock)
                for number in range(max(names) // share + 1)
            ]
            self.host_of = [self.hosts[rank // share] for rank in names]
        # Messages that each rank still has to process, the first of which its processors work on.
        self.unprocessed: list[deque[Sent]] = [deque() for _ in range(size + servers)]
        # Gradients in flight, by rank and step.
        self.gradients: dict[tuple[int, int], tuple[Worker, Gradient, Future[Tensor]]] = {}
        self.collectives: dict[int, Collective] = {}  # under way, by number
        self.sleeps: dict[tuple[int, int], Future[None]] = {}  # by rank and number
        # Collectives of a worker that repeats a step, by rank and number.
        self.repeated: dict[tuple[int, int], Future[Any]] = {}
        # While steps are repeated, requests of workers do not reach the outside.
        self.repeating = False
        # By rank: events of each worker since its last step began; see `snapshot`.
        self.journals: dict[int, list[Entry]] = {}
        self.step_snapshots: dict[int, State] | None = {} if survives else None  # by rank
        self.listener = listener
        for death in faults.deaths if survives else ():
            if max(death.ranks) < size:
                self.clock.at_first(death.start + VOTE_SECONDS, Death(death.ranks))

    # The runtime of the workers.

    def now(self) -> float:
        return self.clock.now

    def start_of_step(self, worker: Worker) -> None:
        if self.step_snapshots is not None:
            self.step_snapshots[worker.rank] = step_snapshot(worker)
        if not self.repeating:
            self.listener.start_of_step(worker)

    def end_of_step(self, worker: Worker) -> None:
        if not self.repeating:
            self.listener.end_of_step(worker)

    def spawn(self, worker: Worker, coroutine: Coroutine[Future[Any], None, T]) -> Future[T]:
        return self.scheduler.spawn(coroutine, activity_name(worker, coroutine), worker.explained)

    def sleep(self, worker: Worker, number: int, seconds: float) -> Future[None]:
        future = self.sleeps[worker.rank, number] = Future(("the end of its sleep",))
        if not self.repeating:
            end = self.fabric.times.awake(worker.rank).clear(self.clock.now + seconds)
            self.clock.at(end, Wakes(worker.rank, number))
        return future

    def wake(self, rank: int, number: int) -> None:
        self.note(rank, "sleep", number)
        self.scheduler.resolve(self.sleeps.pop((rank, number)), None)

    def grad(self, worker: Worker, at: Tensor, apart: bool = False) -> Future[Tensor]:
        future: Future[Tensor] = Future(ITS_GRADIENT)
        gradient = self.next_gradient(worker, at, future)
        if not self.repeating:
            if self.hosts:
                self.compute(worker.rank, gradient.step)
            else:
                gradient.due, _ = self.gradient_times(worker.rank)
                self.clock.at(gradient.due, GradientEnds(worker.rank, gradient.step))
            self.engine.start(gradient)
        return future

    def mean_grad(self, worker: Worker, apart: bool = False) -> Future[Tensor]:
        rank, number = worker.rank, worker.comm.next_collective()
        future: Future[Tensor] = self.joined(number, rank, gathers=False)
        gradient = self.next_gradient(worker, worker.params, future)

        def finish(mean: Tensor) -> Tensor:
            worker.progress.loss = gradient.loss
            return mean.clone()

        future.finish = finish
        if not self.repeating:
            self.engine.start(gradient)
            num_bytes = self.wire_bytes(worker.params)
            if self.hosts:
                self.compute(rank, gradient.step, (number, num_bytes))
            else:
                end, joins = self.gradient_times(rank)
                self.clock.at(joins, Joins(number, rank, gradient.step, num_bytes, end))
        return future

    def next_gradient(self, worker: Worker, at: Tensor, future: Future[Tensor]) -> Gradient:
        gradient = Gradient(worker.rank, worker.progress.gradients, at, worker.model_buffers)
        gradient.due = self.clock.now
        worker.progress.gradients += 1
        self.gradients[gradient.rank, gradient.step] = worker, gradient, future
        return gradient

    def sampled_seconds(self, rank: int) -> float:
        return self.compute_times[rank].draw()

    def gradient_times(self, rank: int) -> tuple[float, float]:
        """When a gradient that begins now is complete, and when its all-reduce can begin.

        Loading its batch may have begun earlier.
        """
        now, free = self.clock.now, self.free_at[rank]
        seconds = self.gradient_seconds(rank)
        loading = self.input_share * seconds
        if self.fabric.times.steady:
            end = max(now, free + loading) + (seconds - loading)
            return end, max(now, end - self.cluster.overlap * seconds)
        computing = self.fabric.times.computing(rank)
        begin = max(now, computing.finish(free, free + loading))
        end = begin + (seconds - loading)
        joins = max(now, end - self.cluster.overlap * seconds)
        return computing.finish(begin, end), computing.finish(min(begin, joins), joins)

    # Gradients and messages on processors that several ranks share.

    def compute(self, rank: int, step: int, joins: tuple[int, float] | None = None) -> None:
        """Begin to compute a gradient, which joins the collective ``joins`` on the way."""
        seconds = self.gradient_seconds(rank)
        left = 0.0 if joins is None else self.cluster.overlap * seconds
        computed = Computed(rank, step, self.clock.now, joins, left)
        self.host_of[rank].begin(seconds - left, computed)

    def computed(self, done: Computed) -> None:
        """End a gradient, or let it join; slow nodes and pauses delay that."""
        rank, step, now = done.rank, done.step, self.clock.now
        end = self.fabric.times.computing(rank).finish(done.began, now)
        if done.joins is None:
            self.clock.at(end, GradientEnds(rank, step))
            return
        ready = end
        if done.left:
            # The rest continues at the same rate while the mean is under way.
            ready += (end - done.began) * self.cluster.overlap / (1 - self.cluster.overlap)
            self.host_of[rank].begin(done.left, Nothing())
        self.clock.at(end, Joins(done.joins[0], rank, step, done.joins[1], ready))

    def take(self, sent: Sent, channel: Channel, arrival: float) -> None:
        """Take a message in as it arrives, not before the last one of its stream."""
        seconds = self.cluster.passing_seconds_per_byte * self.wire_bytes(sent.message)
        host = self.host_of[sent.dst]
        channel.taken = host.begin(seconds, Taken(sent, arrival), channel.taken)

    def process(self, rank: int) -> None:
        """Begin to process the first message that ``rank`` has received."""
        cluster, sent = self.cluster, self.unprocessed[rank][0]
        costs = cluster.mixing_seconds_per_byte
        if rank >= self.size:
            costs = cluster.serving_seconds_per_byte * cluster.node_factors.get(rank, 1.0)
        seconds = costs * self.wire_bytes(sent.message)
        self.host_of[rank].begin(seconds, Served(sent))

    def reduced(self, number: int) -> None:
        collective = self.collectives[number]
        collective.unreduced -= 1
        if not collective.unreduced:
            self.clock.at(max(self.clock.now, collective.end), CollectiveEnds(number))

    def end_gradient(self, rank: int, step: int) -> None:
        if self.journals:
            self.note(rank, "gradient", step)
        worker, gradient, future = self.gradients.pop((rank, step))
        value = self.engine.finish(gradient)
        self.free_at[rank] = self.clock.now
        worker.progress.loss = gradient.loss
        self.scheduler.resolve(future, value)

    def note(self, rank: int, *entry: Any) -> None:
        """Append to a worker's journal, if a snapshot is being taken."""
        if (journal := self.journals.get(rank)) is not None:
            journal.append(entry)

    def wire_bytes(self, tensor: Tensor) -> float:
        """Bytes that a tensor counts for on the network."""
        return self.wire.num_bytes(tensor)

    def deliver(self, sent: Sent) -> None:
        rank, cluster = sent.dst, self.cluster
        if self.hosts:
            self.unprocessed[rank].append(sent)
            if len(self.unprocessed[rank]) == 1:
                self.process(rank)
        elif rank >= self.size and cluster.serving_seconds_per_byte:
            seconds = (
                self.wire_bytes(sent.message)
                * cluster.serving_seconds_per_byte
                * cluster.node_factors.get(rank, 1.0)
            )
            begin = max(self.clock.now, self.free_at[rank])
            self.free_at[rank] = self.fabric.times.computing(rank).finish(begin, begin + seconds)
            self.clock.at(self.free_at[rank], Served(sent))
        else:
            self.receive(sent)

    def served(self, sent: Sent) -> None:
        """Receive a processed message, and begin with the next one."""
        rank = sent.dst
        if self.hosts:
            self.unprocessed[rank].popleft()
            if self.unprocessed[rank]:
                self.process(rank)
        self.receive(sent)

    def receive(self, sent: Sent) -> None:
        dst, src, tag, message = sent.dst, sent.src, sent.tag, sent.open()
        if self.journals:
            self.note(dst, "deliver", src, tag, message)
        self.mailboxes[dst].deliver(src, tag, message)

    # A collective begins when the last rank has joined and ends for all ranks at once, by the
    # cluster's cost model.

    def joined(self, number: int, rank: int, gathers: bool) -> Future[Any]:
        """The future that ``rank`` awaits of the collective ``number``."""
        if self.repeating:
            future: Future[Any] = Future(("collective", number, None))
            self.repeated[rank, number] = future
            return future
        collective = self.collectives.get(number)
        if collective is None:
            collective = self.collectives[number] = Collective(
                number, gathers, set(range(self.size))
            )
        future = Future((collective.name.split()[0], number, collective.missing))
        collective.futures[rank] = future
        return future

    def join(
        self, number: int, rank: int, part: Tensor | Gradient, num_bytes: float, ready: float
    ) -> None:
        """Join a collective with a part that is complete at ``ready``.

        The mean of a gradient that is not complete begins now; what a gradient has changed may have
        begun before, while that was computed.
        """
        collective = self.collectives[number]
        lead = 0.0 if isinstance(part, Gradient) else self.lead[rank]
        collective.begin = max(collective.begin, self.clock.now - lead)
        collective.parts[rank] = part if isinstance(part, Gradient) else (part, part._version)
        collective.missing.discard(rank)
        collective.ready = max(collective.ready, ready)
        collective.num_bytes = num_bytes
        if not collective.missing:
            collective.end = self.end_of(collective)
            if not self.hosts:
                self.clock.at(collective.end, CollectiveEnds(number))
                return
            # Each rank sends and receives so many bytes.
            seconds = 2 * self.bytes_of(collective) * self.cluster.passing_seconds_per_byte
            collective.unreduced = self.size
            for each in range(self.size):
                self.host_of[each].begin(seconds, Reduced(number))

    def end_of(self, collective: Collective) -> float:
        """End of a collective that all ranks have just joined; it occupies their interfaces."""
        cluster, size, num_bytes = self.cluster, self.size, collective.num_bytes
        if collective.gathers:
            rounds, cost = cluster.all_gather_rounds, cluster.all_gather_seconds
        else:
            rounds, cost = cluster.all_reduce_rounds, cluster.all_reduce_seconds
        delay = self.fabric.collective_delay(collective.number, size, rounds(size))
        if collective.number == 0:
            delay += cluster.connect_seconds
        seconds = cost(size, num_bytes) + delay

        def slower(link: float) -> float:
            return (cost(size, num_bytes, link) + delay) / seconds if seconds else 1.0

        together = self.fabric.times.together(range(size), slower)
        inside = 0.0  # what it takes longer than its bytes, and hosts therefore do inside
        if self.hosts:
            inside = max(0.0, seconds - self.bytes_of(collective) * 8 / cluster.bandwidth)
        end = self.fabric.occupy(range(size), collective.begin, seconds - inside, together)
        end = together.finish(end, end + inside)
        if collective.begin < self.clock.now:
            return max(end, self.clock.now)
        last_bucket = min(1.0, cluster.bucket_bytes / num_bytes) * seconds if num_bytes else 0.0
        return max(end, together.finish(collective.ready, collective.ready + last_bucket))

    def bytes_of(self, collective: Collective) -> float:
        """Bytes that each node sends in a collective."""
        if collective.gathers:
            return (self.size - 1) * collective.num_bytes
        return self.cluster.all_reduce_bytes(self.size, collective.num_bytes)

    def end_collective(self, number: int) -> None:
        collective = self.collectives.pop(number)
        outcome, num_bytes = collective.outcome(self.engine), round(self.bytes_of(collective))
        for rank, future in collective.futures.items():
            self.comms[rank].num_bytes_sent += num_bytes
            self.free_at[rank] = self.clock.now
            self.note(rank, "collective", number, outcome)
            self.scheduler.resolve(future, outcome)

    # The run as a whole.

    def start(self, worker: Worker, coroutine: Coroutine[Future[Any], None, None]) -> None:
        self.scheduler.spawn(coroutine, f"rank {worker.rank}", worker.explained)

    def run(self) -> None:
        """Run until every worker has finished; raise LeftInFlight if messages remain."""
        try:
            with few_collections(none=isinstance(self.engine, NoGradients)):
                self.scheduler.run()
        except Deadlock as error:
            self.check_times()
            raise Deadlock("\n  ".join([str(error), *self.faults.for_good])) from None
        finally:
            self.scheduler.close()
        unread = [
            f"rank {rank} did not receive {count} message(s) from rank {src} (tag {tag})"
            for rank, mailbox in enumerate(self.mailboxes)
            for src, tag, count in mailbox.unread()
        ]
        if self.fabric.in_flight:
            unread.append(f"{self.fabric.in_flight} message(s) are still travelling")
        unread += [f"{collective.name} has not ended" for collective in self.collectives.values()]
        if unread:
            self.check_times()
            raise LeftInFlight("the run ended with messages in flight: " + "; ".join(unread))

    def check_times(self) -> None:
        """Raise TimeOverflow if an event was never due, though no fault lasts permanently."""
        if self.clock.never and not self.faults.for_good:
            raise TimeOverflow(f"simulated time is not finite after {self.clock.now:g} s")

    # The state of the machines without the workers, when none of them is ready to run.

    def state_dict(self) -> State:
        return {
            "clock": self.clock.state_dict(),
            "fabric": self.fabric.state_dict(),
            "free_at": self.free_at,
            "hosts": [host.state_dict() for host in self.hosts],
            "unprocessed": [[sent.fields for sent in waiting] for waiting in self.unprocessed],
            "randoms": [times.state for times in self.compute_times],
            "collectives": [collective.state_dict() for collective in self.collectives.values()],
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the machines, after the workers have repeated the steps that they were in."""
        self.clock.load_state_dict(state["clock"], EVENTS)
        self.fabric.load_state_dict(state["fabric"])
        self.free_at[:] = state["free_at"]
        for host, saved in zip(self.hosts, state["hosts"], strict=True):
            host.load_state_dict(saved, EVENTS)
        for waiting, messages in zip(self.unprocessed, state["unprocessed"], strict=True):
            waiting.extend(Sent(*message) for message in messages)
        for times, saved in zip(self.compute_times, state["randoms"], strict=True):
            times.state = saved
        for saved in state["collectives"]:
            self.load_collective(saved)
        for _, gradient, _ in self.gradients.values():
            self.engine.start(gradient)

    def load_collective(self, saved: State) -> None:
        number = saved["number"]
        collective = Collective(
            number,
            saved["gathers"],
            set(saved["missing"]),
            begin=saved["begin"],
            ready=saved["ready"],
            num_bytes=saved["num_bytes"],
            unreduced=saved["unreduced"],
            end=saved["end"],
        )
        self.collectives[number] = collective
        for rank in saved["futures"]:
            future = self.repeated.pop((rank, number))
            future.what = (collective.name.split()[0], number, collective.missing)
            collective.futures[rank] = future
        for rank, part in saved["parts"].items():
            if part is None:
                collective.parts[rank] = self.joining(rank, collective)
            else:
                collective.parts[rank] = part, part._version

    def joining(self, rank: int, collective: Collective) -> Gradient:
        """The gradient that ``rank`` contributed to the ``collective``."""
        for key, (worker, gradient, future) in self.gradients.items():
            if worker.rank == rank and future is collective.futures[rank]:
                del self.gradients[key]
                self.engine.start(gradient)
                return gradient
        raise KeyError(rank)

    def expect(self, worker: Worker) -> None:
        """Register the collectives under way of a worker restored to the start of a step."""
        for future in futures_in(worker.state):
            if not future.done:
                future.finish = copied
                self.repeated[worker.rank, future.what[1]] = future


class TimeOverflow(RuntimeError):
    """A simulated time is larger than any floating-point number."""


class LeftInFlight(RuntimeError):
    """An algorithm ended without receiving everything that was sent."""


class SimulatedTransport(Transport):
    """The messages of one simulated worker."""

    __slots__ = ("rank", "simulation")

    def __init__(self, rank: int, simulation: Simulation) -> None:
        self.rank, self.simulation = rank, simulation

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        simulation = self.simulation
        if simulation.repeating:
            return 0
        num_bytes = simulation.wire.num_bytes(message)
        if simulation.hosts:
            seconds = num_bytes * simulation.cluster.passing_seconds_per_byte
            simulation.host_of[self.rank].begin(seconds, Nothing())
        simulation.fabric.transmit(Sent(self.rank, dst, tag, message), num_bytes)
        return round(num_bytes)

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.begin(number, tensor, gathers=False), 0  # bytes count when it ends

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.begin(number, tensor, gathers=True), 0

    def begin(self, number: int, tensor: Tensor, gathers: bool) -> Future[Any]:
        simulation = self.simulation
        future = simulation.joined(number, self.rank, gathers)
        future.finish = copied
        if not simulation.repeating:
            simulation.join(
                number, self.rank, tensor, simulation.wire_bytes(tensor), simulation.clock.now
            )
        return future


def copied(outcome: Any) -> Any:
    """A copy of the tensor; those of an all-gather are read-only and not copied."""
    return list(outcome) if isinstance(outcome, list) else outcome.clone()
