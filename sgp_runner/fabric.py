"""The simulated network: every node has an interface with a first-in-first-out queue in each direction.

A message waits for its sender's queue, takes ``bytes / bandwidth`` to leave, and its first bit arrives ``latency`` later; there it
waits for the receiver's queue. Sending and receiving of one message overlap, as on a switched network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sgp_runner.cluster import Cluster
from sgp_runner.faults import Faults
from sgp_runner.scheduler import VirtualClock

if TYPE_CHECKING:
    from torch import Tensor


class Fabric:
    """Moves messages between ``size`` interfaces in simulated time; ``deliver`` is called when the last bit of one has arrived."""

    def __init__(self, cluster: Cluster, faults: Faults, clock: VirtualClock, size: int, deliver: Callable[[Sent], None]) -> None:
        self.cluster = cluster
        self.seconds_per_byte = [8 / cluster.bandwidth * faults.slow_links.get(rank, 1.0) for rank in range(size)]
        self.clock, self.deliver = clock, deliver
        self.tx_free = [0.0] * size  # when each direction of each interface has worked off its queue
        self.rx_free = self.tx_free if cluster.duplex == "half" else [0.0] * size
        self.in_flight = 0  # messages

    def transmit(self, sent: Sent, num_bytes: float) -> None:
        clock, cluster, src = self.clock, self.cluster, sent.src
        seconds = num_bytes * max(self.seconds_per_byte[src], self.seconds_per_byte[sent.dst])
        start = max(clock.now, self.tx_free[src]) + cluster.message_overhead_seconds
        self.tx_free[src] = start + seconds
        self.in_flight += 1
        clock.at(start + cluster.latency_seconds, self.reach, sent, seconds)

    def reach(self, sent: Sent, seconds: float) -> None:
        """The first bit is at the receiver's interface, which it will keep busy for ``seconds``."""
        self.rx_free[sent.dst] = max(self.clock.now, self.rx_free[sent.dst]) + seconds
        self.clock.at(self.rx_free[sent.dst], self.arrive, sent)

    def arrive(self, sent: Sent) -> None:
        self.in_flight -= 1
        self.deliver(sent)

    def occupy(self, ranks: range, start: float, seconds: float) -> float:
        """A collective uses all interfaces of ``ranks`` from ``start`` on, after their queues; returns its end."""
        free = max(max(self.tx_free[rank], self.rx_free[rank]) for rank in ranks)
        end = max(start, free) + seconds
        for rank in ranks:
            self.tx_free[rank] = self.rx_free[rank] = end
        return end


class Sent:
    """A message on its way, with the version of its memory when it was given away."""

    __slots__ = ("dst", "message", "src", "tag", "version")

    def __init__(self, src: int, dst: int, tag: int, message: Tensor) -> None:
        self.src, self.dst, self.tag, self.message, self.version = src, dst, tag, message, message._version

    def open(self) -> Tensor:
        check_unwritten(self.message, self.version, f"a message from rank {self.src} to rank {self.dst} (tag {self.tag})")
        return self.message


class WrittenAfterSend(RuntimeError):
    """A tensor was changed although it had been given away."""


def check_unwritten(tensor: Tensor, version: int, what: str) -> None:
    if tensor._version != version:
        raise WrittenAfterSend(f"{what} was written to after it had been given away; send a clone.")
