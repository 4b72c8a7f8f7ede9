"""The simulated network: every node has an interface with a first-in-first-out queue in each direction.

A message waits for its sender's queue, takes ``bytes / bandwidth`` to leave, and its first bit arrives ``latency`` later; there it
waits for the receiver's queue. Sending and receiving of one message overlap, as on a switched network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sgp_runner.cluster import Cluster
from sgp_runner.faults import Faults
from sgp_runner.scheduler import VirtualClock

if TYPE_CHECKING:
    from torch import Tensor


class Fabric:
    """Moves bytes between ``size`` interfaces in simulated time."""

    def __init__(self, cluster: Cluster, faults: Faults, clock: VirtualClock, size: int) -> None:
        self.cluster = cluster
        self.seconds_per_byte = [8 / cluster.bandwidth * faults.slow_links.get(rank, 1.0) for rank in range(size)]
        self.clock = clock
        self.tx_free = [0.0] * size  # when each direction of each interface has worked off its queue
        self.rx_free = self.tx_free if cluster.duplex == "half" else [0.0] * size
        self.in_flight = 0  # messages

    def transmit(self, src: int, dst: int, num_bytes: float, deliver: Callable[..., None], *arguments: Any) -> None:
        """Call ``deliver(*arguments)`` when the last bit has arrived at ``dst``."""
        clock, cluster = self.clock, self.cluster
        seconds = num_bytes * max(self.seconds_per_byte[src], self.seconds_per_byte[dst])
        start = max(clock.now, self.tx_free[src]) + cluster.message_overhead_seconds
        self.tx_free[src] = start + seconds
        self.in_flight += 1
        clock.at(start + cluster.latency_seconds, self.reach, dst, seconds, deliver, arguments)

    def reach(self, dst: int, seconds: float, deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """The first bit is at ``dst``'s interface."""
        self.rx_free[dst] = max(self.clock.now, self.rx_free[dst]) + seconds
        self.clock.at(self.rx_free[dst], self.arrive, deliver, arguments)

    def arrive(self, deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.in_flight -= 1
        deliver(*arguments)

    def occupy(self, ranks: range, start: float, seconds: float) -> float:
        """A collective uses all interfaces of ``ranks`` from ``start`` on, after their queues; returns its end."""
        free = max(max(self.tx_free[rank], self.rx_free[rank]) for rank in ranks)
        end = max(start, free) + seconds
        for rank in ranks:
            self.tx_free[rank] = self.rx_free[rank] = end
        return end


class Sent:
    """A message on its way, with the version of its memory when it was given away."""

    __slots__ = ("message", "src", "tag", "version")

    def __init__(self, src: int, tag: int, message: Tensor) -> None:
        self.src, self.tag, self.message, self.version = src, tag, message, message._version

    def open(self, dst: int) -> Tensor:
        check_unwritten(self.message, self.version, f"a message from rank {self.src} to rank {dst} (tag {self.tag})")
        return self.message


class WrittenAfterSend(RuntimeError):
    """A tensor was changed although it had been given away."""


def check_unwritten(tensor: Tensor, version: int, what: str) -> None:
    if tensor._version != version:
        raise WrittenAfterSend(f"{what} was written to after it had been given away; send a clone.")
