"""A run in simulated time: every worker in one process, real gradients, modelled machines."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sgp_runner.cluster import Cluster
from sgp_runner.comm.mailbox import Mailbox
from sgp_runner.crew import ROLL_CALL_SECONDS, Rested, rested
from sgp_runner.engine import Engine, Gradient, NoGradients
from sgp_runner.errors import Lost
from sgp_runner.fabric import Fabric, Sent, check_unwritten
from sgp_runner.faults import Event, Faults
from sgp_runner.memory import few_collections
from sgp_runner.scheduler import Deadlock, Scheduler, VirtualClock, Wait
from sgp_runner.seeding import seed_of
from sgp_runner.worker import activity_name, naming_the_rank

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner import snapshot
    from sgp_runner.worker import Worker

T = TypeVar("T")

_COMPUTE, _NODE, _CREW = 201, 202, 205  # streams of random numbers
LEAST_SECONDS = 1e-6  # by which a gradient is lengthened


class AllReduce:
    """One all-reduce: who has joined, with what, and who waits for it."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.missing = set(range(size))
        self.parts: dict[int, tuple[Tensor, int] | Gradient] = {}  # a tensor and its version, or a gradient still to be computed
        self.waits: dict[int, Wait[Tensor]] = {}
        self.ready = 0.0  # when the last part is complete
        self.num_bytes = 0.0


class Simulation:
    """The machines: a scheduler on a virtual clock, a fabric, a mailbox per rank and an engine for gradients.

    size: gradient workers; servers: further ranks, which take no part in an all-reduce.
    names: of these ranks, if others were there and are gone.
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
        wire_scale: float,
        names: Sequence[int] | None = None,
    ) -> None:
        from numpy.random import default_rng

        nodes, names = seed, names or range(size + servers)
        if tuple(names) != (*range(size + servers),):
            seed = seed_of(seed, _CREW, *names)
        self.cluster, self.faults, self.engine, self.size, self.wire_scale = cluster, faults, engine, size, wire_scale
        self.clock = VirtualClock()
        self.scheduler = Scheduler(self.clock)
        self.fabric = Fabric(cluster, faults, self.clock, size + servers, self.deliver, seed)
        self.mailboxes = [Mailbox(self.scheduler) for _ in range(size + servers)]
        self.comms = [SimComm(rank, self) for rank in range(size + servers)]
        self.randoms = [default_rng(seed_of(seed, _COMPUTE, rank)) for rank in range(size)]
        spread = cluster.heterogeneity**-2 if cluster.heterogeneity else 0.0
        own = [default_rng(seed_of(nodes, _NODE, names[rank])).gamma(spread, 1 / spread) if spread else 1.0 for rank in range(size)]
        self.mean_seconds = [step_seconds * float(own[rank]) * cluster.node_factors.get(rank, 1.0) for rank in range(size)]
        self.input_share = cluster.input_seconds / step_seconds
        self.free_at = [0.0] * (size + servers)  # when each node last ended a gradient or an all-reduce, or a server ends its messages
        self.mixing = [0.0] * (size + servers)  # seconds that each rank has still to spend on messages that it has received
        self.passed = [0.0] * size  # bytes that had passed when each node's gradient began, or was last lengthened
        self.all_reduces: dict[int, AllReduce] = {}
        self.model_buffers: dict[int, list[Tensor]] = {}  # by rank
        self.journals: dict[int, list[snapshot.Event]] = {}  # by rank; see `sgp_runner.snapshot`
        self.rests: dict[int, Rested] | None = None  # by rank; for those who may have to go on without others
        self.replay: snapshot.Replay | None = None
        self.start_of_step_hook: Callable[[Worker], None] = lambda worker: None
        self.end_of_step_hook: Callable[[Worker], None] = lambda worker: None

    # What a worker asks of its runtime.

    def now(self) -> float:
        return self.clock.now

    def start_of_step(self, worker: Worker) -> None:
        if self.rests is not None:
            self.rests[worker.rank] = rested(worker, self.model_buffers[worker.rank])
        self.start_of_step_hook(worker)

    def end_of_step(self, worker: Worker) -> None:
        self.end_of_step_hook(worker)

    def spawn(self, worker: Worker, coroutine: Coroutine[Wait[Any], None, T]) -> Wait[T]:
        return self.scheduler.spawn(naming_the_rank(worker, coroutine), activity_name(worker, coroutine))

    def grad(self, worker: Worker, at: Tensor) -> Wait[Tensor]:
        gradient = self.next_gradient(worker, at)
        wait: Wait[Tensor] = Wait(("its gradient",))
        if self.replay is not None:
            self.replay.gradients[worker.rank] = (worker, gradient, wait)
            return wait
        self.engine.start(gradient)
        end, _ = self.gradient_times(worker.rank)
        self.contention(worker.rank)
        self.clock.at(end, self.finish_gradient, worker, gradient, wait)
        return wait

    def mean_grad(self, worker: Worker) -> Awaitable[Tensor]:
        gradient = self.next_gradient(worker, worker.params)
        number = self.next_all_reduce(worker.rank)
        if self.replay is not None:
            return self.mean_of(worker, gradient, self.replay.join(worker.rank, number, gradient))
        self.engine.start(gradient)
        end, joins = self.gradient_times(worker.rank)
        wait = self.wait_for(number, worker.rank)
        num_bytes = self.wire_bytes(worker.params)
        self.clock.at(joins, self.join, number, worker.rank, gradient, num_bytes, end)
        return self.mean_of(worker, gradient, wait)

    async def mean_of(self, worker: Worker, gradient: Gradient, wait: Wait[Tensor]) -> Tensor:
        mean = (await wait).clone()
        worker.progress.loss = gradient.loss
        return mean

    def next_gradient(self, worker: Worker, at: Tensor) -> Gradient:
        gradient = Gradient(worker.rank, worker.progress.gradients, at, self.model_buffers[worker.rank])
        worker.progress.gradients += 1
        return gradient

    def gradient_times(self, rank: int) -> tuple[float, float]:
        """When a gradient that begins now will be complete, and when its all-reduce can begin; loading may have begun before."""
        now, free = self.clock.now, self.free_at[rank]
        computing = self.fabric.times.computing(rank)
        seconds = self.cluster.compute_time.sample(self.mean_seconds[rank], self.randoms[rank])
        loading = self.input_share * seconds
        begin = max(now, computing.finish(free, free + loading)) + self.mixing[rank]
        self.mixing[rank] = 0.0
        end = begin + (seconds - loading)
        joins = max(now, end - self.cluster.overlap * seconds)
        return computing.finish(begin, end), computing.finish(min(begin, joins), joins)

    def finish_gradient(self, worker: Worker, gradient: Gradient, wait: Wait[Tensor]) -> None:
        if (late := self.contention(worker.rank)) > LEAST_SECONDS:
            self.clock.at(self.clock.now + late, self.finish_gradient, worker, gradient, wait)
            return
        self.note(worker.rank, "gradient")
        value = self.engine.finish(gradient)
        self.free_at[worker.rank] = self.clock.now
        worker.progress.loss = gradient.loss
        self.scheduler.resolve(wait, value)

    def contention(self, rank: int) -> float:
        """Seconds that messages have taken from a gradient, since this was last asked."""
        if not self.cluster.contention_seconds_per_byte:
            return 0.0
        before, self.passed[rank] = self.passed[rank], self.fabric.passed(rank)
        return self.cluster.contention_seconds_per_byte * (self.passed[rank] - before)

    def note(self, rank: int, *event: Any) -> None:
        """Keep what happened to a worker since its last step began, if a snapshot is being taken."""
        if (journal := self.journals.get(rank)) is not None:
            journal.append(event)

    def wire_bytes(self, tensor: Tensor) -> float:
        """What a tensor counts for on the network."""
        return tensor.numel() * tensor.element_size() * self.wire_scale

    def deliver(self, sent: Sent) -> None:
        num_bytes = self.wire_bytes(sent.message)
        rank, cluster = sent.dst, self.cluster
        if rank < self.size:
            self.mixing[rank] += cluster.mixing_seconds_per_byte * num_bytes
        elif cluster.serving_seconds_per_byte:
            seconds = num_bytes * cluster.serving_seconds_per_byte * cluster.node_factors.get(rank, 1.0)
            begin = max(self.clock.now, self.free_at[rank])
            self.free_at[rank] = self.fabric.times.computing(rank).finish(begin, begin + seconds)
            self.clock.at(self.free_at[rank], self.receive, sent)
            return
        self.receive(sent)

    def receive(self, sent: Sent) -> None:
        message = sent.open()
        self.note(sent.dst, "deliver", sent.src, sent.tag, message)
        self.mailboxes[sent.dst].deliver(sent.src, sent.tag, message)

    # All-reduce: begins when the last rank has joined, ends for all at once, by the cluster's cost model.

    def next_all_reduce(self, rank: int) -> int:
        comm = self.comms[rank]
        comm.all_reduces += 1
        return comm.all_reduces - 1

    def wait_for(self, number: int, rank: int) -> Wait[Tensor]:
        operation = self.all_reduces.get(number)
        if operation is None:
            operation = self.all_reduces[number] = AllReduce(number, self.size)
        wait: Wait[Tensor] = Wait(("all_reduce", number, operation.missing))
        operation.waits[rank] = wait
        return wait

    def join(self, number: int, rank: int, part: Tensor | Gradient, num_bytes: float, ready: float) -> None:
        operation = self.all_reduces[number]
        operation.parts[rank] = part if isinstance(part, Gradient) else (part, part._version)
        operation.missing.discard(rank)
        operation.ready = max(operation.ready, ready)
        operation.num_bytes = num_bytes
        if operation.missing:
            return
        cluster, size = self.cluster, self.size
        delay = self.fabric.all_reduce_delay(number, size)
        seconds = cluster.all_reduce_seconds(size, num_bytes) + delay

        def slower(link: float) -> float:
            return (cluster.all_reduce_seconds(size, num_bytes, link) + delay) / seconds if seconds else 1.0

        together = self.fabric.times.together(range(size), slower)
        end = self.fabric.occupy(range(size), self.clock.now, seconds, cluster.all_reduce_bytes(size, num_bytes), together)
        last_bucket = min(1.0, cluster.bucket_bytes / num_bytes) * seconds if num_bytes else 0.0
        last = together.finish(operation.ready, operation.ready + last_bucket)
        self.clock.at(max(end, last), self.complete, number)

    def complete(self, number: int) -> None:
        operation = self.all_reduces.pop(number)
        total: Tensor | None = None
        for rank in range(operation.size):  # in rank order, so that the sum does not depend on time
            part = operation.parts.pop(rank)
            if isinstance(part, Gradient):
                value = self.engine.finish(part)
            else:
                value = part[0]
                check_unwritten(value, part[1], f"what rank {rank} gave to all-reduce {operation.number}")
            total = value if total is None else total.add_(value)
        assert total is not None
        total /= operation.size
        num_bytes = self.cluster.all_reduce_bytes(operation.size, operation.num_bytes)
        for rank, wait in operation.waits.items():
            self.comms[rank].num_bytes_sent += round(num_bytes)
            self.free_at[rank] = self.clock.now
            self.note(rank, "all_reduce", number, total)
            self.scheduler.resolve(wait, total)

    # The run as a whole.

    def start(self, worker: Worker, coroutine: Coroutine[Wait[Any], None, None]) -> None:
        self.scheduler.spawn(naming_the_rank(worker, coroutine), f"rank {worker.rank}")

    def expect_deaths(self) -> None:
        """The others notice, and `run` raises Lost, when workers crash for good; all remember where they were at rest."""
        self.rests = {}
        for number, death in enumerate(self.faults.deaths):
            if max(death.ranks) < self.size:  # before whatever else happens at that moment
                heapq.heappush(self.clock.events, (death.start + ROLL_CALL_SECONDS, -1 - number, self.lose, (death,)))

    def lose(self, death: Event) -> None:
        raise Lost(death.ranks)

    def run(self) -> None:
        """Until every worker has finished; then nothing may be left in flight."""
        try:
            with few_collections(none=isinstance(self.engine, NoGradients)):
                self.scheduler.run()
        except Deadlock as error:
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
        unread += [f"all-reduce {number} has not ended" for number in self.all_reduces]
        if unread:
            raise LeftInFlight("the run ended with messages in flight: " + "; ".join(unread))


class LeftInFlight(RuntimeError):
    """An algorithm ended without receiving everything that was sent."""


class SimComm:
    """The communication of one simulated worker."""

    def __init__(self, rank: int, simulation: Simulation) -> None:
        self.rank = rank
        self.simulation = simulation
        self.mailbox = simulation.mailboxes[rank]
        self.num_bytes_sent = 0
        self.all_reduces = 0

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        simulation = self.simulation
        if simulation.replay is not None:  # it was sent before
            return
        num_bytes = simulation.wire_bytes(message)
        self.num_bytes_sent += round(num_bytes)
        simulation.fabric.transmit(Sent(self.rank, dst, tag, message), num_bytes)

    def recv(self, src: int, tag: int = 0) -> Wait[Tensor]:
        return self.mailbox.recv(src, tag)

    def recv_any(self, tag: int = 0) -> Wait[tuple[int, Tensor]]:
        return self.mailbox.recv_any(tag)

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        return self.mailbox.poll(src, tag)

    def all_reduce(self, tensor: Tensor) -> Mean:
        simulation = self.simulation
        number = simulation.next_all_reduce(self.rank)
        if simulation.replay is not None:
            return Mean(number, simulation.replay.join(self.rank, number, None))
        mean = Mean(number, simulation.wait_for(number, self.rank))
        num_bytes = simulation.wire_bytes(tensor)
        simulation.join(number, self.rank, tensor, num_bytes, simulation.clock.now)
        return mean


class Mean:
    """An all-reduce under way: await it for a tensor of one's own."""

    __slots__ = ("number", "wait")

    def __init__(self, number: int, wait: Wait[Tensor]) -> None:
        self.number, self.wait = number, wait

    def __await__(self) -> Generator[Wait[Tensor], None, Tensor]:
        return (yield from self.wait.__await__()).clone()
