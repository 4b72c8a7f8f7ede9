"""The simulated network: each node has an interface with a FIFO queue in each direction.

A message waits in its sender's queue and takes ``bytes / bandwidth`` to leave it. Its first bit
arrives ``latency`` later and waits in the receiver's queue. Sending and receiving one message
overlap, as on a switched network. Messages from one node to another stay in order, as in a TCP
stream, even if individual messages are delayed. An interface is busy only for the time that a
message takes at its own rate: a message to or from a slower interface arrives later but does not
delay the messages of other streams.

The link of a region (`sgp_runner.cluster.regions`) also has a FIFO queue per direction. A message
to another region passes through four queues: the sender's, the queues of the two regions, with the
latency between them, and the receiver's.

With ``protocol=rendezvous``, a message leaves when its sender has delivered its previous message
and its receiver has received all messages announced before. Until then the next messages of the
sender wait. A message is announced together with the last bits of the previous one, so only the
first message in a queue waits for the latency.

The windows of connections limit individual streams (`sgp_runner.cluster.connection_laws`): the last
bit of a message arrives later, and the interfaces are free in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from numpy.random import Generator
from torch import Tensor

from sgp_runner.cluster.connection_laws import connection_rate, slow_start_seconds
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.links import Links
from sgp_runner.cluster.rates import WorkSchedule
from sgp_runner.cluster.regions import byte_prices, region_of_each
from sgp_runner.cluster.timetable import Timetable
from sgp_runner.core.mailbox import WrittenAfterSend
from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.utils.seeding import seed_of

_MESSAGE, _COLLECTIVE = 203, 204  # streams of random numbers


@dataclass(slots=True)
class Channel:
    """The stream from one rank to another.

    sent: number of messages so far. reach, arrival: times at which the last message reaches the
        interface and the rank. taken: level (`sgp_runner.simulator.processors`) at which the
        processors have received the last message.
    """

    sent: int = 0
    reach: float = 0.0
    arrival: float = 0.0
    taken: float = 0.0


class Sent:
    """A message in flight, with the version of its tensor when it was sent.

    channel: stream of the message; None before it enters the network.
    """

    __slots__ = ("channel", "dst", "message", "src", "tag", "version")

    def __init__(self, src: int, dst: int, tag: int, message: Tensor) -> None:
        self.src, self.dst, self.tag = src, dst, tag
        self.message, self.version = message, message._version
        self.channel: Channel | None = None

    def open(self) -> Tensor:
        if self.message._version != self.version:
            raise WrittenAfterSend(
                f"a message from rank {self.src} to rank {self.dst} (tag {self.tag})"
            )
        return self.message

    @property
    def fields(self) -> tuple[int, int, int, Tensor]:
        """The constructor's arguments."""
        return self.src, self.dst, self.tag, self.message


def packed_events(clock: VirtualClock, events: Iterable[tuple[float, int, str, Any]]) -> list[Any]:
    """Return ``events`` as plain data, ordered by time, with arguments by name."""
    saved = []
    for time, order, event, arguments in sorted(events):
        names = signature(clock.handlers[event]).parameters
        values = [
            argument.fields if isinstance(argument, Sent) else argument for argument in arguments
        ]
        saved.append((time, order, event, dict(zip(names, values, strict=True))))
    return saved


def unpacked_events(saved: Iterable[Any]) -> list[tuple[float, int, str, tuple[Any, ...]]]:
    """Invert `packed_events`."""
    return [
        (time, order, event, tuple(Sent(*v) if k == "sent" else v for k, v in fields.items()))
        for time, order, event, fields in saved
    ]


def shared(numbers: Iterable[float]) -> list[float]:
    """Return a list in which equal numbers are the same object, to fit in the cache."""
    equal: dict[float, float] = {}
    return [equal.setdefault(number, number) for number in numbers]


class Fabric:
    """The network, which moves messages between ``size`` interfaces in simulated time.

    deliver: called when the last bit of a message has arrived.
    times: effects of faults on each node and link.
    on_arrival: called when the first bit of a message arrives, with the message, its stream and the
        time of the last bit; must schedule the arrival. By default it is the time of the last bit.
    seconds_of: returns the travel time for a sender, receiver and number of bytes, if travel times
        are given; messages then do not queue.
    """

    def __init__(
        self,
        links: Links,
        faults: Faults,
        clock: VirtualClock,
        size: int,
        deliver: Callable[[Sent], None],
        seed: int = 0,
        seconds_of: Callable[[int, int, float], float] | None = None,
        times: Timetable | None = None,
        on_arrival: Callable[[Sent, Channel, float], None] | None = None,
    ) -> None:
        self.links, self.faults, self.seed, self.seconds_of = links, faults, seed, seconds_of
        self.up_seconds = shared(8 / links.up(rank) for rank in range(size))  # to send a byte
        self.down_seconds = shared(8 / links.down(rank) for rank in range(size))  # to receive it
        self.region_of = region_of_each(links.regions, size)
        self.windows = links.have_windows
        self.rendezvous = links.protocol == "rendezvous" and seconds_of is None
        self.clock, self.deliver, self.on_arrival = clock, deliver, on_arrival
        self.disturbs = faults.disturbs_messages
        self.times = times or Timetable(faults)
        # When each direction of each interface has drained its queue.
        self.tx_free = [0.0] * size
        self.rx_free = self.tx_free if links.duplex == "half" else [0.0] * size
        # When each direction of the link of each region has drained its queue.
        self.leave_free = [0.0] * len(links.regions)
        self.enter_free = [0.0] * len(links.regions)
        self.channels: list[dict[int, Channel]] = [{} for _ in range(size)]  # by src, then dst
        self.in_flight = 0  # messages
        self.traffic_price = 0.0  # of the bytes that left regions so far
        self.prices = byte_prices(links.regions)
        # For rendezvous: messages of each sender that have not arrived, with their bytes and the
        # first moment at which the receiver can know of them; and senders that each receiver knows
        # to have a message for it. The first message of the first sender moves.
        self.outbox: list[deque[tuple[Sent, float, float]]] = [deque() for _ in range(size)]
        self.announced: list[deque[int]] = [deque() for _ in range(size)]
        clock.handlers |= {
            "reach": self.reach,
            "cross": self.cross,
            "arrive": self.arrive,
            "announce": self.announce,
        }

    def transmit(self, sent: Sent, num_bytes: float) -> None:
        clock, links, times, src, dst = self.clock, self.links, self.times, sent.src, sent.dst
        channel = self.channels[src].get(dst)
        if channel is None:
            channel = self.channels[src][dst] = Channel()
        sent.channel = channel
        self.in_flight += 1
        if self.seconds_of is not None:
            channel.arrival = max(channel.arrival, clock.now + self.seconds_of(src, dst, num_bytes))
            clock.at(channel.arrival, "arrive", sent)
            return
        if self.rendezvous:
            self.queue(sent, num_bytes, channel)
            return
        seconds, free = num_bytes * self.up_seconds[src], self.tx_free[src]
        if times.steady:
            start = (free if free > clock.now else clock.now) + links.message_overhead_seconds
            self.tx_free[src] = start + seconds
        else:
            sending = times.link(src)
            start = sending.clear(
                max(times.awake(src).clear(clock.now), free) + links.message_overhead_seconds
            )
            self.tx_free[src] = sending.finish(start, start + seconds)
        last = self.tx_free[src]
        if self.windows:
            last = max(last, start + self.stream_seconds(src, dst, num_bytes))
        crosses = self.crosses(src, dst)
        reach = start if crosses else start + links.latency_seconds
        reach += self.extra_seconds(src, dst, channel)
        if crosses:
            channel.reach = max(reach, channel.reach)
            clock.at(channel.reach, "cross", sent, num_bytes, last - start, True)
            return
        if not times.steady:
            reach = times.path(src, dst).clear(reach)
        if reach > channel.reach:
            channel.reach = reach
        seconds = num_bytes * self.down_seconds[dst]
        late = last - (start + seconds)
        clock.at(channel.reach, "reach", sent, seconds, late)

    def extra_seconds(self, src: int, dst: int, channel: Channel) -> float:
        """Count a message on ``channel`` and return its delay caused by faults."""
        channel.sent += 1
        if not self.disturbs:
            return 0.0
        return float(self.faults.extra_seconds(self.random(_MESSAGE, src, dst, channel.sent - 1)))

    def queue(self, sent: Sent, num_bytes: float, channel: Channel) -> None:
        """Queue a message for its rendezvous."""
        src, dst = sent.src, sent.dst
        announced = self.times.awake(src).clear(self.clock.now) + self.links.start_seconds
        announced = self.times.path(src, dst).clear(
            announced + self.extra_seconds(src, dst, channel)
        )
        self.outbox[src].append((sent, num_bytes, announced))
        if len(self.outbox[src]) == 1:
            self.clock.at(announced, "announce", src)

    def announce(self, src: int) -> None:
        """Announce the first message of ``src`` to its receiver."""
        dst = self.outbox[src][0][0].dst
        self.announced[dst].append(src)
        if len(self.announced[dst]) == 1:
            self.move(src)

    def move(self, src: int) -> None:
        """Move the first message of ``src``."""
        sent, num_bytes, _ = self.outbox[src][0]
        dst, times = sent.dst, self.times
        begin = max(self.clock.now, self.tx_free[src], self.rx_free[dst])
        leaves = times.link(src).finish(begin, begin + num_bytes * self.up_seconds[src])
        enters = times.link(dst).finish(begin, begin + num_bytes * self.down_seconds[dst])
        end = max(leaves, enters)
        if self.windows:
            end = max(end, begin + self.stream_seconds(src, dst, num_bytes))
        self.tx_free[src] = self.rx_free[dst] = end
        end = times.awake(dst).clear(end)
        if self.on_arrival is None:
            self.clock.at(end, "arrive", sent)
        else:
            self.on_arrival(sent, self.channels[src][dst], end)

    def crosses(self, src: int, dst: int) -> bool:
        """Return whether two ranks are in different regions."""
        return bool(self.region_of) and self.region_of[src] != self.region_of[dst]

    def stream_seconds(self, src: int, dst: int, num_bytes: float) -> float:
        """Return the time that a message takes on its connections with the links otherwise idle."""
        links, rate = self.links, min(self.links.up(src), self.links.down(dst))
        if self.crosses(src, dst):
            latency, _, crossing = links.hop(self.region_of[src], self.region_of[dst])
            rate = min(rate, crossing)
        else:
            latency = links.latency_seconds
            rate = connection_rate(rate, 2 * latency, links.window_bytes, links.connections)
        first = links.first_window_bytes
        return num_bytes * 8 / rate + slow_start_seconds(num_bytes, rate, 2 * latency, first)

    def cross(self, sent: Sent, num_bytes: float, tail: float, leaves: bool) -> None:
        """Queue a message whose first bit reaches the link of a region.

        tail: seconds until the last bit. leaves: whether the region is the sender's, not the
            receiver's.
        """
        now, times, regions = self.clock.now, self.times, self.links.regions
        src, dst = self.region_of[sent.src], self.region_of[sent.dst]
        if leaves:
            free, region, rate = self.leave_free, src, regions[src].rate_to(dst)
        else:
            free, region, rate = self.enter_free, dst, regions[dst].bandwidth_down
        begin = max(now, free[region])
        free[region] = begin + num_bytes * 8 / rate
        end = max(free[region], now + tail)
        if leaves:
            self.traffic_price += num_bytes * self.prices[src][dst]
            onward = begin + regions[src].latency_to(dst)
            self.clock.at(onward, "cross", sent, num_bytes, end - begin, False)
            return
        seconds = num_bytes * self.down_seconds[sent.dst]
        reach = begin if times.steady else times.path(sent.src, sent.dst).clear(begin)
        self.clock.at(reach, "reach", sent, seconds, end - (begin + seconds))

    def reach(self, sent: Sent, seconds: float, late: float) -> None:
        """Queue a message whose first bit reaches the receiver's interface.

        seconds: time that the message occupies the interface. late: the last bit arrives at least
            ``seconds + late`` from now.
        """
        now, times, dst = self.clock.now, self.times, sent.dst
        # A message from a checkpoint has no channel.
        free, channel = self.rx_free[dst], sent.channel or self.channels[sent.src][dst]
        begin = free if free > now else now
        free = begin + seconds
        if not times.steady:
            free = times.link(dst).finish(begin, free)
        self.rx_free[dst] = free
        arrival = max(free, now + seconds + late, channel.arrival)
        if self.windows:
            num_bytes = seconds / self.down_seconds[dst]
            stream = self.stream_seconds(sent.src, dst, num_bytes)
            arrival = max(arrival, channel.arrival + stream)
        channel.arrival = arrival if times.steady else times.awake(dst).clear(arrival)
        if self.on_arrival is None:
            self.clock.at(channel.arrival, "arrive", sent)
        else:
            self.on_arrival(sent, channel, channel.arrival)

    def arrive(self, sent: Sent) -> None:
        """Deliver a message whose last bit has arrived."""
        self.in_flight -= 1
        if self.rendezvous:
            self.let_go(sent.src, sent.dst)
        self.deliver(sent)

    def let_go(self, src: int, dst: int) -> None:
        """End a rendezvous and start the next messages from the sender and to the receiver."""
        self.outbox[src].popleft()
        self.announced[dst].popleft()
        if self.announced[dst]:
            self.move(self.announced[dst][0])
        if self.outbox[src]:
            self.clock.at(max(self.clock.now, self.outbox[src][0][2]), "announce", src)

    def random(self, *what: int) -> Generator:
        """Return the random generator of one message or collective."""
        from numpy.random import default_rng

        return default_rng(seed_of(self.seed, *what))

    def collective_delay(self, number: int, size: int, rounds: int) -> float:
        """Return the seconds that faults add to a collective, as rounds wait for late messages."""
        if not self.faults.disturbs_messages or not rounds:
            return 0.0
        extra = self.faults.extra_seconds(self.random(_COLLECTIVE, number), (rounds, size))
        return float(extra.max(axis=1).sum())

    def occupy(self, ranks: range, start: float, seconds: float, course: WorkSchedule) -> float:
        """Occupy the interfaces of ``ranks`` with a collective; return its end.

        It begins at ``start`` or once all queues are empty. It also occupies the links of all
        regions.
        """
        begin = max(
            start,
            *(max(self.tx_free[rank], self.rx_free[rank]) for rank in ranks),
            *self.leave_free,
            *self.enter_free,
        )
        end = course.finish(begin, begin + seconds)
        for rank in ranks:
            self.tx_free[rank] = self.rx_free[rank] = end
        self.leave_free[:] = self.enter_free[:] = [end] * len(self.leave_free)
        return end

    def state_dict(self) -> dict[str, Any]:
        """Return the mutable state as plain data."""
        return {
            "tx_free": self.tx_free,
            "rx_free": None if self.rx_free is self.tx_free else self.rx_free,
            "channels": [
                (src, dst, channel.sent, channel.reach, channel.arrival, channel.taken)
                for src, channels in enumerate(self.channels)
                for dst, channel in channels.items()
            ],
            "in_flight": self.in_flight,
            **({"regions": (self.leave_free, self.enter_free)} if self.region_of else {}),
            **(self.waiting if self.rendezvous else {}),
        }

    @property
    def waiting(self) -> dict[str, Any]:
        """The messages that wait for or are in their rendezvous, as plain data."""
        return {
            "outbox": [[(message.fields, *of) for message, *of in queue] for queue in self.outbox],
            "announced": [list(senders) for senders in self.announced],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state in a new fabric."""
        for queue, saved in zip(self.outbox, state.get("outbox", ()), strict=False):
            queue.extend((Sent(*fields), *of) for fields, *of in saved)
        for senders, saved in zip(self.announced, state.get("announced", ()), strict=False):
            senders.extend(saved)
        self.tx_free[:] = state["tx_free"]
        if state["rx_free"] is not None:
            self.rx_free[:] = state["rx_free"]
        for src, dst, *values in state["channels"]:
            self.channels[src][dst] = Channel(*values)
        self.in_flight = state["in_flight"]
        if self.region_of:
            self.leave_free[:], self.enter_free[:] = state["regions"]
