"""The network interfaces of nodes, and the links between regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from sgp_runner.cluster.checks import check_each_not_negative, check_positive, check_rate
from sgp_runner.cluster.connection_laws import connection_rate
from sgp_runner.cluster.regions import Region
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import BitsPerSecond, BitsPerSecondInterval, Bytes, Seconds


@dataclass(frozen=True)
class Links:
    """The network interfaces of nodes, and the links between regions.

    bandwidth: bits per second of a node's network interface, in each direction; or an interval such
        as ``4..10Gbit/s``: the run uses the lowest, and the summary has the times at both
    latency_seconds: time from the departure of the first bit to its arrival
    message_overhead_seconds: time that the sender's interface takes for each message before the
        first bit
    duplex: ``full``: one queue for each direction; ``half``: sending and receiving share one queue
    bandwidth_up: bits per second that a node sends; null: the same as bandwidth
    bandwidth_down: bits per second that a node receives; null: the same as bandwidth
    node_bandwidth_up: bits per second that individual nodes send, by rank, e.g. ``{3: 20Mbit/s}``
    node_bandwidth_down: bits per second that individual nodes receive, by rank
    regions: groups of nodes joined by slower links, each {nodes: ..., bandwidth_up: ...,
        bandwidth_down: ..., latency_seconds: ..., window_bytes: ...}; all messages that leave or
        enter a region share its link; the latency is one number, or one per region
    connections: number of connections that carry a message
    window_bytes: largest window of a connection, which carries at most one window per round trip;
        0: no limit
    first_window_bytes: bytes of the first round trip of a message, over all its connections; slow
        start doubles them in every round trip; 0: no slow start
    protocol: ``eager``: a message leaves immediately and waits at its receiver; ``rendezvous``: it
        leaves when its receiver is free, and the sender's next messages wait, as with Gloo
    """

    bandwidth: BitsPerSecond | BitsPerSecondInterval
    latency_seconds: Seconds
    message_overhead_seconds: Seconds = 0.0
    duplex: Literal["full", "half"] = "full"
    bandwidth_up: BitsPerSecond | None = None
    bandwidth_down: BitsPerSecond | None = None
    node_bandwidth_up: Mapping[int, BitsPerSecond] = field(default_factory=dict)
    node_bandwidth_down: Mapping[int, BitsPerSecond] = field(default_factory=dict)
    regions: Sequence[Region] = ()
    connections: int = 1
    window_bytes: Bytes = 0
    first_window_bytes: Bytes = 0
    protocol: Literal["eager", "rendezvous"] = "eager"

    def __post_init__(self) -> None:
        rates = self.rates
        if isinstance(self.bandwidth, Sequence) and (len(rates) != 2 or rates[0] >= rates[1]):
            raise ConfigError(
                "cluster.links.bandwidth",
                f"{[*rates]} is not a lower and a higher rate: use 0.5..1Gbit/s.",
            )
        for rate in rates:
            check_rate("cluster.links.bandwidth", rate)
        for key in ("bandwidth_up", "bandwidth_down"):
            if (rate := getattr(self, key)) is not None:
                check_rate(f"cluster.links.{key}", rate)
        for key in ("node_bandwidth_up", "node_bandwidth_down"):
            for rank, rate in getattr(self, key).items():
                check_rate(f"cluster.links.{key}.{rank}", rate)
        if self.regions and self.protocol == "rendezvous":
            raise ConfigError(
                "cluster.links.protocol",
                "messages between regions are only modelled with protocol=eager.",
            )
        check_positive("cluster.links.connections", self.connections)
        times = ("latency_seconds", "message_overhead_seconds")
        windows = ("window_bytes", "first_window_bytes")
        check_each_not_negative(self, "cluster.links", *times, *windows)

    @property
    def start_seconds(self) -> float:
        """The time from the start of a message to the arrival of its first bit."""
        return self.latency_seconds + self.message_overhead_seconds

    @property
    def rates(self) -> Sequence[float]:
        """The bandwidth of interfaces, or its lowest and highest value."""
        return self.bandwidth if isinstance(self.bandwidth, Sequence) else (self.bandwidth,)

    @property
    def rate(self) -> float:
        """The bits per second of interfaces; the lowest value of a range."""
        return self.rates[0]

    @property
    def unequal(self) -> bool:
        """Whether directions or nodes have different rates."""
        directions = (self.bandwidth_up, self.bandwidth_down)
        return any((*directions, self.node_bandwidth_up, self.node_bandwidth_down))

    @property
    def have_windows(self) -> bool:
        """Whether connection windows limit messages."""
        windows = (self.window_bytes, *(region.window_bytes for region in self.regions))
        return any((*windows, self.first_window_bytes))

    def up(self, rank: int) -> float:
        """Return the bits per second that ``rank`` sends."""
        return self.node_bandwidth_up.get(rank, self.bandwidth_up or self.rate)

    def down(self, rank: int) -> float:
        """Return the bits per second that ``rank`` receives."""
        return self.node_bandwidth_down.get(rank, self.bandwidth_down or self.rate)

    def interfaces(self, nodes: int) -> set[tuple[float, float]]:
        """Return the distinct pairs of rates, up and down, of ``nodes`` nodes."""
        single = bool(self.node_bandwidth_up or self.node_bandwidth_down)
        return {(self.up(rank), self.down(rank)) for rank in range(nodes if single else 1)}

    def turns(self, up: float, down: float) -> float:
        """Return the times to send and to receive a byte, relative to the slower of the two."""
        return 1 + min(up, down) / max(up, down) if self.duplex == "half" else 1

    def hop(self, here: int, there: int) -> tuple[float, float, float]:
        """Return the latency between two regions, and the bits per second of link and message.

        Connection windows may limit the rate of the message.
        """
        sender, receiver = self.regions[here], self.regions[there]
        latency = sender.latency_to(there)
        link = min(sender.rate_to(there), receiver.bandwidth_down)
        window = self.window_bytes if receiver.window_bytes is None else receiver.window_bytes
        return latency, link, connection_rate(link, 2 * latency, window, self.connections)

    def ring(self) -> list[tuple[int, int]]:
        """Return the pairs of consecutive regions in a ring of all ranks."""
        inhabited = [number for number, region in enumerate(self.regions) if region.nodes]
        return list(pairwise([*inhabited, inhabited[0]])) if len(inhabited) > 1 else []

    def crossings(self) -> list[tuple[float, float, float]]:
        """Return each `hop` between regions in a ring of all ranks, its latency with overhead."""
        hops = (self.hop(*pair) for pair in self.ring())
        return [
            (latency + self.message_overhead_seconds, link, rate) for latency, link, rate in hops
        ]
