"""The machines that a simulated run models, as data in ``configs/cluster``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf, log2

from sgp_runner.cluster.checks import check_positive, check_ranks
from sgp_runner.cluster.coding_times import CodingTimes
from sgp_runner.cluster.collective_laws import (
    all_reduce_in_rounds,
    chain,
    reduce_and_broadcast,
    ring_all_gather,
    ring_all_reduce,
    slice_of,
)
from sgp_runner.cluster.collectives import Collectives
from sgp_runner.cluster.compute_variation import ComputeTime
from sgp_runner.cluster.connection_laws import connection_rate
from sgp_runner.cluster.links import Links
from sgp_runner.cluster.nodes import Hosts, StepTimes
from sgp_runner.cluster.regions import check_regions, left_in
from sgp_runner.cluster.validated import Validated
from sgp_runner.utils.errors import ConfigError

# Copies per asynchronous gradient: to the host, into the model there, the model back to the device.
ASYNC_HOST_PASSES = 3


@dataclass(frozen=True)
class Cluster:
    """A cluster of nodes that are identical up to node_factors and heterogeneity.

    name: the name in reports
    devices_per_node: number of devices that share the work and the interface of a node; all times
        are those of a whole node
    compute_time: step-to-step variation of gradient times
    compute: mean times of gradients
    links: rates and latencies
    collectives: all-reduces and all-gathers
    hosts: processors that ranks share, and the work that messages cause there
    codecs: times of encoding and decoding
    validated: range in which simulated times were compared with real times; runs outside it get a
        warning
    """

    compute_time: ComputeTime
    compute: StepTimes
    links: Links
    collectives: Collectives = field(default_factory=Collectives)
    hosts: Hosts = field(default_factory=Hosts)
    codecs: CodingTimes = field(default_factory=CodingTimes)
    validated: Validated = field(default_factory=Validated)
    devices_per_node: int = 1
    name: str = "custom"

    def __post_init__(self) -> None:
        check_positive("cluster.devices_per_node", self.devices_per_node)
        if self.links.regions and not self.collectives.has_ring:
            raise ConfigError(
                "cluster.collectives.algorithm",
                "only ring all-reduces are modelled between regions, not "
                f"{self.collectives.algorithm}: use cluster.collectives.algorithm=ring or "
                "hierarchical.",
            )
        if self.hosts.cores_per_host is not None and self.compute.input_seconds:
            raise ConfigError(
                "cluster.compute.input_seconds",
                "loading during a gradient is not modelled on processors that ranks share: use "
                "cluster.compute.input_seconds=0, or cluster.hosts.cores_per_host=null.",
            )
        if self.hosts.cores_per_host is not None and self.codecs.overlap:
            raise ConfigError(
                "cluster.codecs.overlap",
                "encoding during a gradient is not modelled on processors that ranks share: use "
                "cluster.codecs.overlap=false, or cluster.hosts.cores_per_host=null.",
            )

    def check(self, nodes: int, servers: int) -> None:
        """Raise ConfigError for ranks that the run lacks, or regions whose sizes do not match.

        A parameter server has a link but computes no gradients.
        """
        links, ranks = self.links, nodes + servers
        check_ranks("cluster.compute.node_factors", self.compute.node_factors, nodes)
        check_ranks("cluster.links.node_bandwidth_up", links.node_bandwidth_up, ranks)
        check_ranks("cluster.links.node_bandwidth_down", links.node_bandwidth_down, ranks)
        check_regions(links.regions, nodes)

    def subset(self, new: Mapping[int, int]) -> Cluster:
        """Return the cluster restricted to the ranks in ``new``, a map from old to new ranks."""

        def renumbered(values: Mapping[int, float]) -> dict[int, float]:
            return {new[rank]: value for rank, value in values.items() if rank in new}

        links = replace(
            self.links,
            node_bandwidth_up=renumbered(self.links.node_bandwidth_up),
            node_bandwidth_down=renumbered(self.links.node_bandwidth_down),
            regions=left_in(self.links.regions, new),
        )
        compute = replace(self.compute, node_factors=renumbered(self.compute.node_factors))
        return replace(self, compute=compute, links=links)

    def all_reduce_seconds(self, nodes: int, num_bytes: float, slowest_link: float = 1.0) -> float:
        """Return the time of an all-reduce that all ``nodes`` start at the same time.

        In half duplex, sending and receiving take turns. The formulas are in
        `sgp_runner.cluster.collective_laws`.

        slowest_link: divisor of the bandwidth of the slowest interface, which every round waits for
        """
        if nodes == 1:
            return 0.0
        start, transfer = self.slowest_hop(nodes, num_bytes, slowest_link)
        add = num_bytes * self.hosts.host_seconds_per_byte
        algorithm, library = self.collectives.algorithm, self.collectives.library
        if not self.collectives.has_ring:
            return all_reduce_in_rounds(algorithm, nodes, start, transfer, add)
        ranks, window = self.ranks_of_ring(nodes), self.links.first_window_bytes
        seconds = ring_all_reduce(library, ranks, num_bytes, start, transfer, add, window)
        if algorithm == "hierarchical":
            seconds += self.inside_seconds(num_bytes, slowest_link)
        return seconds

    def all_reduce_rounds(self, nodes: int) -> int:
        """Return the number of consecutive rounds of an all-reduce."""
        if self.collectives.has_ring:
            return 2 * (self.ranks_of_ring(nodes) - 1)
        doubling = self.collectives.algorithm == "recursive_doubling"
        return (1 if doubling else 2) * ceil(log2(nodes))

    def all_reduce_bytes(self, nodes: int, num_bytes: float) -> float:
        """Return the bytes that one node sends in an all-reduce.

        For trees and hierarchical all-reduces, this is the mean over nodes.
        """
        if self.collectives.algorithm == "recursive_doubling":
            return ceil(log2(nodes)) * num_bytes
        hierarchical = self.collectives.algorithm == "hierarchical"
        ranks = nodes if hierarchical else self.ranks_of_ring(nodes)
        return 2 * (ranks - 1) / ranks * num_bytes

    @property
    def leaders(self) -> int:
        """The number of regions whose leaders form a ring; 0 if collectives ignore regions."""
        hierarchical = self.collectives.algorithm == "hierarchical"
        return len(self.links.crossings()) if hierarchical else 0

    def ranks_of_ring(self, nodes: int) -> int:
        """Return the number of nodes, devices or regions' leaders in a ring."""
        if self.collectives.algorithm == "hierarchical":
            return self.leaders or nodes
        return nodes * (self.devices_per_node if self.collectives.ring_over == "devices" else 1)

    def inside_seconds(self, num_bytes: float, slowest_link: float) -> float:
        """Return the time to reduce and broadcast inside each region or node."""
        if self.links.crossings():
            ranks = max(region.nodes for region in self.links.regions)
            start, whole = self.inside_region.slowest_hop(ranks, num_bytes, slowest_link)
        else:
            ranks, start = self.devices_per_node, 0.0
            whole = num_bytes * 8 / (self.collectives.device_bandwidth or inf)
        return reduce_and_broadcast(ranks, num_bytes, start, whole)

    def all_gather_seconds(self, nodes: int, num_bytes: float, slowest_link: float = 1.0) -> float:
        """Return the time of an all-gather of ``num_bytes`` per node (ring or recursive doubling).

        Between regions it is hierarchical, in three consecutive phases: each region gathers, the
        leaders exchange their regions' data in a ring, and each leader broadcasts the data of the
        others. So a link between regions carries the data of a node once, not once for each node of
        the other regions. slowest_link: as in `all_reduce_seconds`.
        """
        start, transfer = self.slowest_hop(nodes, num_bytes, slowest_link)
        library = self.collectives.library
        if not self.collectives.has_ring:
            return self.all_gather_rounds(nodes) * start + (nodes - 1) * transfer
        if not self.leaders:
            return ring_all_gather(library, nodes, num_bytes, start, transfer)
        sizes = [region.nodes for region in self.links.regions if region.nodes]
        most = max(sizes)
        near, whole = self.inside_region.slowest_hop(most, num_bytes, slowest_link)
        part = slice_of(num_bytes, whole)
        return (
            ring_all_gather(library, most, num_bytes, near, whole)
            + ring_all_gather(library, self.leaders, most * num_bytes, start, most * transfer)
            + max(chain(size, (nodes - size) * whole, near, part) for size in sizes)
        )

    def all_gather_rounds(self, nodes: int) -> int:
        """Return the number of consecutive rounds of an all-gather, like `all_reduce_rounds`."""
        if self.collectives.has_ring:
            return (self.leaders or nodes) - 1
        return ceil(log2(nodes))

    def ring_price(self, nodes: int, num_bytes: float, gathers: bool) -> float:
        """Return the price of the bytes that an all-gather or all-reduce sends between regions."""
        ranks, price = self.ranks_of_ring(nodes), 0.0
        for here, there in self.links.ring():
            crossing = 2 * (ranks - 1) / ranks
            if gathers:  # without what the region itself, or its first node, has
                crossing = nodes - (self.links.regions[there].nodes if self.leaders else 1)
            price += crossing * num_bytes * self.links.regions[here].price_to(there)
        return price

    @property
    def inside_region(self) -> Cluster:
        """The cluster without links between regions."""
        return replace(self, links=replace(self.links, regions=()))

    def slowest_hop(self, nodes: int, num_bytes: float, slowest_link: float) -> tuple[float, float]:
        """Return the latency of a message of a collective and the transfer time of ``num_bytes``.

        Every round waits for its slowest message. Therefore all interfaces get the rate of the
        slowest interface, which is the rate of its slower direction (half duplex: of both in turn).
        A ring through regions in rank order leaves and enters each region once. All its hops get
        the longest latency and the lowest rate of these crossings. If these belong to different
        crossings, the time is an upper bound.
        """
        links, measured = self.links, self.collectives
        start, rates = measured.all_reduce_latency_seconds, links.interfaces(nodes)
        if start is None:
            start = links.start_seconds
        if measured.all_reduce_bandwidth is not None:
            rates = {(measured.all_reduce_bandwidth, measured.all_reduce_bandwidth)}
        transfer = max(
            num_bytes * 8 * slowest_link / min(pair) * links.turns(*pair) for pair in rates
        )
        crossings = links.crossings()
        if not crossings:
            rate = connection_rate(inf, 2 * start, links.window_bytes, links.connections)
            transfer = max(transfer, num_bytes * 8 / rate)
        for latency, _, rate in crossings:
            start = max(start, latency)
            transfer = max(transfer, num_bytes * 8 / rate)
        return start, transfer
