"""Processor time of gradients, messages and collectives.

With `OwnProcessors`, every node computes at its own speed, and messages take no processor time.
With `SharedProcessors`, the ranks of a host share its cores (`sgp_runner.simulator.processors`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar

from sgp_runner.cluster.coding_times import Coding
from sgp_runner.cluster.timetable import Timetable
from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.simulator.compute_times import GradientTimes
from sgp_runner.simulator.engine import Gradient
from sgp_runner.simulator.fabric import Channel, Sent
from sgp_runner.simulator.machine_model import MachineModel
from sgp_runner.simulator.processors import Host

#: The number of a collective, and the bytes of a rank's contribution to it.
Contribution = tuple[int, float]


class OwnProcessors:
    """Processors of nodes, which compute at their own speeds, and of servers, which queue messages.

    busy_until: for each node, the end of its last gradient or collective; for a server, the end of
        its last message
    computing_until, coded_until: for each node, the end of all gradients and of all coding begun so
        far
    receive: called with each processed message
    """

    on_arrival: ClassVar[None] = None

    def __init__(
        self,
        model: MachineModel,
        clock: VirtualClock,
        timetable: Timetable,
        times: GradientTimes,
        receive: Callable[[Sent], None],
    ) -> None:
        self.model, self.clock, self.timetable = model, clock, timetable
        self.times, self.receive = times, receive
        self.input_share = model.cluster.compute.input_seconds / model.step_seconds
        self.overlap = model.cluster.collectives.overlap
        self.busy_until = [0.0] * model.ranks
        self.computing_until, self.coded_until = [0.0] * model.ranks, [0.0] * model.ranks
        self.hosts: list[Host] = []
        self.unprocessed: list[deque[Sent]] = []
        clock.handlers["served"] = receive

    def begin(self, gradient: Gradient, contribution: Contribution | None) -> None:
        """Start a gradient, which joins a collective if it is a contribution to one."""
        end, joins = self.gradient_times(gradient.rank)
        self.computing_until[gradient.rank] = end
        if contribution is None:
            gradient.due = end
            self.clock.at(end, "gradient ends", gradient.rank, gradient.step)
        else:
            number, num_bytes = contribution
            self.clock.at(joins, "joins", number, gradient.rank, gradient.step, num_bytes, end)

    def cancel(self, gradient: Gradient) -> None:
        """Free the rank for its next gradient now and ignore the end of this gradient."""
        self.busy_until[gradient.rank] = self.clock.now

    def gradient_times(self, rank: int) -> tuple[float, float]:
        """Return the end of a gradient that starts now, and the earliest start of its all-reduce.

        The batch may have started loading earlier. The gradient starts later if the node is coding
        and coding does not overlap.
        """
        now, free, overlap = self.clock.now, self.busy_until[rank], self.overlap
        if not self.model.cluster.codecs.overlap:
            now = max(now, self.coded_until[rank])
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

    def code(self, rank: int, seconds: float, number: int, what: Coding) -> None:
        """Code after all earlier coding and, if coding does not overlap, all earlier gradients."""
        begin = max(self.clock.now, self.coded_until[rank])
        if not self.model.cluster.codecs.overlap:
            begin = max(begin, self.computing_until[rank])
        end = self.timetable.computing(rank).finish(begin, begin + seconds)
        self.coded_until[rank] = end
        self.clock.at(end, "coded", rank, number, what, begin)

    def on_send(self, rank: int, num_bytes: float) -> None:
        """Do nothing."""

    def deliver(self, sent: Sent) -> None:
        """Start processing a message that has arrived."""
        rank = sent.dst
        costs = self.model.cluster.hosts.serving_seconds_per_byte
        if rank < self.model.size or not costs:
            self.receive(sent)
            return
        seconds = self.model.wire.num_bytes(sent.message) * costs * self.model.factor(rank)
        begin = max(self.clock.now, self.busy_until[rank])
        self.busy_until[rank] = self.timetable.computing(rank).finish(begin, begin + seconds)
        self.clock.at(self.busy_until[rank], "served", sent)

    def host_seconds(self, seconds: float, num_bytes: float) -> float:
        """Return the part of a collective's ``seconds`` that occupies no link."""
        return 0.0

    def reduce(self, number: int, num_bytes: float) -> int:
        """Start the processors' work for a collective; return how many ranks have work."""
        return 0


class SharedProcessors:
    """Processors that the ranks of a host share to compute, code, send and receive.

    hosts: hosts of the ranks
    unprocessed: for each rank, messages still to process; the rank is processing the first one
    """

    def __init__(
        self,
        model: MachineModel,
        clock: VirtualClock,
        timetable: Timetable,
        times: GradientTimes,
        receive: Callable[[Sent], None],
    ) -> None:
        self.model, self.clock, self.timetable = model, clock, timetable
        self.times, self.receive = times, receive
        self.costs, self.overlap = model.cluster.hosts, model.cluster.collectives.overlap
        assert self.costs.cores_per_host is not None
        share = self.costs.ranks_per_host or model.ranks
        self.busy_until = [0.0] * model.ranks
        self.computing_until, self.coded_until = [0.0] * model.ranks, [0.0] * model.ranks
        self.hosts = [
            Host(number, self.costs.cores_per_host, clock)
            for number in range(max(model.original_ranks) // share + 1)
        ]
        self.host_of = [self.hosts[rank // share] for rank in model.original_ranks]
        self.unprocessed: list[deque[Sent]] = [deque() for _ in range(model.ranks)]
        clock.handlers |= {
            "computed": self.on_compute_done,
            "coding done": self.on_coding_done,
            "taken": self.on_message_done,
            "served": self.on_served,
            "task ends": lambda host, turn: self.hosts[host].end(turn),
            "nothing": lambda: None,
        }

    def passing_seconds(self, num_bytes: float) -> float:
        """Return the processor seconds to send or receive ``num_bytes``."""
        return self.costs.passing_seconds_per_byte * num_bytes

    def begin(self, gradient: Gradient, contribution: Contribution | None) -> None:
        rank, seconds = gradient.rank, self.times.draw(gradient.rank)
        left = 0.0 if contribution is None else self.overlap * seconds
        done = (rank, gradient.step, self.clock.now, contribution, left)
        self.host_of[rank].begin(seconds - left, "computed", *done)

    def cancel(self, gradient: Gradient) -> None:
        self.busy_until[gradient.rank] = self.clock.now
        self.host_of[gradient.rank].cancel("computed", gradient.rank, gradient.step)

    def on_compute_done(
        self, rank: int, step: int, began: float, joins: Contribution | None, left: float
    ) -> None:
        """End a gradient, or let it join a collective, after delays from slow nodes and pauses.

        left: remaining processor seconds of the gradient, which overlap the collective
        """
        end = self.timetable.computing(rank).finish(began, self.clock.now)
        if joins is None:
            self.clock.at(end, "gradient ends", rank, step)
            return
        ready, overlap = end, self.overlap
        if left:
            # The rest of the gradient continues at the same rate during the all-reduce.
            ready += (end - began) * overlap / (1 - overlap)
            self.host_of[rank].begin(left, "nothing")
        number, num_bytes = joins
        self.clock.at(end, "joins", number, rank, step, num_bytes, ready)

    def code(self, rank: int, seconds: float, number: int, what: Coding) -> None:
        """Start coding as an ordinary task; messages do not wait for it automatically."""
        self.host_of[rank].begin(seconds, "coding done", rank, number, what, self.clock.now)

    def on_coding_done(self, rank: int, number: int, what: Coding, begin: float) -> None:
        """End coding, after delays from slow nodes and pauses."""
        end = self.coded_until[rank] = self.timetable.computing(rank).finish(begin, self.clock.now)
        self.clock.at(end, "coded", rank, number, what, begin)

    def on_send(self, rank: int, num_bytes: float) -> None:
        """Start sending a message."""
        self.host_of[rank].begin(self.passing_seconds(num_bytes), "nothing")

    def on_arrival(self, sent: Sent, channel: Channel, arrival: float) -> None:
        """Start receiving a message as it arrives, but after the previous message of its stream."""
        seconds = self.passing_seconds(self.model.wire.num_bytes(sent.message))
        host = self.host_of[sent.dst]
        channel.taken = host.begin(seconds, "taken", sent, arrival, after=channel.taken)

    def on_message_done(self, sent: Sent, arrival: float) -> None:
        """Wait for the last bit of a message that the processors have already handled."""
        self.clock.at(max(self.clock.now, arrival), "arrive", sent)

    def deliver(self, sent: Sent) -> None:
        self.unprocessed[sent.dst].append(sent)
        if len(self.unprocessed[sent.dst]) == 1:
            self.process(sent.dst)

    def process(self, rank: int) -> None:
        """Start processing the first message in the queue of ``rank``."""
        model, sent = self.model, self.unprocessed[rank][0]
        costs = self.costs.mixing_seconds_per_byte
        if rank >= model.size:
            costs = self.costs.serving_seconds_per_byte * model.factor(rank)
        self.host_of[rank].begin(costs * model.wire.num_bytes(sent.message), "served", sent)

    def on_served(self, sent: Sent) -> None:
        waiting = self.unprocessed[sent.dst]
        waiting.popleft()
        if waiting:
            self.process(sent.dst)
        self.receive(sent)

    def host_seconds(self, seconds: float, num_bytes: float) -> float:
        return max(0.0, seconds - num_bytes * 8 / self.model.cluster.links.rate)

    def reduce(self, number: int, num_bytes: float) -> int:
        seconds = self.passing_seconds(2 * num_bytes)  # each rank sends and receives num_bytes
        for host in self.host_of[: self.model.size]:
            host.begin(seconds, "reduced", number)
        return self.model.size


ComputeModel = OwnProcessors | SharedProcessors
