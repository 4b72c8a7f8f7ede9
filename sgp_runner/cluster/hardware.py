"""The machines that a simulated run models, as data in ``configs/cluster``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, log2
from typing import Literal

from sgp_runner.cluster.checks import (
    check_not_negative,
    check_positive,
    check_power,
    check_ranks,
    check_rate,
)
from sgp_runner.cluster.collectives import (
    Library,
    all_reduce_in_rounds,
    pipelined_all_gather,
    reduce_and_broadcast,
    ring_all_reduce,
)
from sgp_runner.cluster.compute_variation import ComputeTime
from sgp_runner.cluster.connections import connection_rate
from sgp_runner.cluster.regions import Region, check_regions, crossings, left_in
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import BitsPerSecond, Bytes, Seconds, bit_rate, counted, num_bytes

# Copies per asynchronous gradient: to the host, into the model there, the model back to the device.
ASYNC_HOST_PASSES = 3

NOT_NEGATIVE = (
    *("latency_seconds", "message_overhead_seconds", "heterogeneity", "host_seconds_per_byte"),
    *("input_seconds", "connect_seconds", "mixing_seconds_per_byte", "passing_seconds_per_byte"),
    *("serving_seconds_per_byte", "all_reduce_latency_seconds", "window_bytes"),
    "first_window_bytes",
)
HOST_KEYS = ("ranks_per_host", "passing_seconds_per_byte", "mixing_seconds_per_byte")
UNEQUAL_LINKS = ("bandwidth_up", "bandwidth_down", "node_bandwidth_up", "node_bandwidth_down")
RINGS = ("ring", "hierarchical")
RATES = ("bandwidth", "bandwidth_up", "bandwidth_down", "all_reduce_bandwidth", "device_bandwidth")
VALIDATED = ("nodes", "bandwidth", "least_bytes", "most_bytes")

Collective = Literal["ring", "recursive_doubling", "halving_doubling", "tree", "hierarchical"]


@dataclass(frozen=True)
class Cluster:
    """A cluster of nodes that are identical except for ``node_factors`` and ``heterogeneity``.

    compute_time: variation of the time of a gradient from step to step
    name: the name in reports
    devices_per_node: number of devices that share the work and the interface of a node; all times
        here are times of a whole node
    step_seconds: mean time of one gradient of one node, by model name; ``default`` applies to
        models that are not listed
    step_batch: samples per node for which the time in step_seconds holds, by model name; time is
        proportional to the batch. The time of a model that is not listed does not depend on the
        batch
    input_seconds: time at the start of a gradient for loading and copying the batch, which needs no
        parameters. It overlaps with waiting for messages, but not with waiting for an all-reduce,
        which blocks the stream of the node
    node_factors: slow-down of single nodes by rank, e.g. ``{3: 2.0}``: node 3 computes half as fast
    heterogeneity: coefficient of variation of the nodes' random factors, drawn once per node from a
        Gamma law; 0 for equal nodes
    bandwidth: bits per second of a node's network interface, in each direction
    bandwidth_up: bits per second that a node sends; null: the same as bandwidth
    bandwidth_down: bits per second that a node receives; null: the same as bandwidth
    node_bandwidth_up: bits per second that single nodes send, by rank, e.g. ``{3: 20Mbit/s}``
    node_bandwidth_down: bits per second that single nodes receive, by rank
    regions: groups of nodes joined by slower links, each {nodes: ..., bandwidth_up: ...,
        bandwidth_down: ..., latency_seconds: ...}; none: all nodes are equally close. The
        bandwidths are the rates of a region's link, which all messages that leave or enter the
        region share; the latency is one number, or a list with one number per region
    latency_seconds: time from the departure of the first bit to its arrival
    message_overhead_seconds: time that the sender's interface spends on each message before the
        first bit
    duplex: ``full``: one queue for each direction; ``half``: sending and receiving share one queue
    collective: the all-reduce algorithm. hierarchical: reduce inside each region, or inside each
        node if there are none, then a ring of the leaders, then broadcast
    overlap: share of a gradient's compute time during which its all-reduce can already run
        (bucketed backward pass)
    bucket_bytes: size of the last bucket, whose all-reduce starts only when the gradient is
        complete
    exchange_overlap: share of the last gradient's compute time during which an all-reduce or
        all-gather of the local change can already run, layer by layer at the end of the backward
        pass; it does not affect the results of training
    fragment_overlap: like exchange_overlap, for the exchange of one fragment of the model
    host_seconds_per_byte: time for the processor to add up or copy one byte of a message, if the
        network stack is on the host. It counts once for the bytes that each round of an all-reduce
        adds. It counts `ASYNC_HOST_PASSES` times for each gradient of an asynchronous algorithm,
        because the model stays on the host, where other nodes can always access it
    all_reduce_bandwidth: measured bits per second of a node's interface in an all-reduce; null: the
        same as bandwidth
    all_reduce_latency_seconds: measured latency of a round of an all-reduce; null: latency_seconds
        plus message_overhead_seconds
    connect_seconds: extra time of the first collective of a run, in which libraries such as NCCL
        connect the nodes
    cores_per_host: number of processor cores that the ranks of one host share. A gradient occupies
        one core, so a host computes this number of gradients at full speed; step_seconds hold for a
        gradient that runs alone. null: every rank has its own cores
    ranks_per_host: number of consecutive ranks on one host; null: all ranks, including servers
    passing_seconds_per_byte: core time for each byte that a rank sends or receives
    mixing_seconds_per_byte: core time to prepare a message and to add a received message, for each
        byte received, before the message counts as received
    serving_seconds_per_byte: time of a parameter server to answer a gradient, per byte of the
        gradient, while other gradients arrive; it holds for Gap-Aware ASGD and is an upper
        limit for other algorithms. The server answers one gradient after the other
    fitted_on: published rows (``row`` of their presets) to which a constant of this cluster was
        fitted; the times of other rows are predictions
    validated: range in which simulated times were compared with real times; a run outside it gets a
        warning. Optional keys: nodes (the largest number), bandwidth, least_bytes and most_bytes of
        a model
    library: law of a ring: nccl (chunks pass in slices, which hides latency), gloo (two segments in
        flight), or null (every round costs a latency)
    ring_over: ranks of a ring: nodes, which reduce first, or all devices, which do not; a ring of
        devices enters and leaves each node once
    connections: number of connections of a message
    window_bytes: largest window of a connection, which carries at most one window per round trip;
        0: no limit
    first_window_bytes: bytes of the first round trip of a message, over all its connections; slow
        start doubles them in every round trip; 0: no slow start
    device_bandwidth: bits per second between devices of a node, for hierarchical collectives; null:
        no time passes inside a node
    """

    step_seconds: Mapping[str, Seconds]
    compute_time: ComputeTime
    bandwidth: BitsPerSecond
    latency_seconds: Seconds
    node_factors: Mapping[int, float]
    step_batch: Mapping[str, int] = field(default_factory=dict)
    devices_per_node: int = 1
    input_seconds: Seconds = 0.0
    host_seconds_per_byte: float = 0.0
    message_overhead_seconds: Seconds = 0.0
    duplex: Literal["full", "half"] = "full"
    collective: Collective = "ring"
    overlap: float = 0.0
    bucket_bytes: Bytes = 25 * 2**20
    heterogeneity: float = 0.0
    name: str = "custom"
    fitted_on: tuple[str, ...] = ()
    validated: Mapping[str, float] = field(default_factory=dict)
    all_reduce_bandwidth: BitsPerSecond | None = None
    all_reduce_latency_seconds: Seconds | None = None
    connect_seconds: Seconds = 0.0
    cores_per_host: float | None = None
    ranks_per_host: int | None = None
    passing_seconds_per_byte: float = 0.0
    mixing_seconds_per_byte: float = 0.0
    serving_seconds_per_byte: float = 0.0
    bandwidth_up: BitsPerSecond | None = None
    bandwidth_down: BitsPerSecond | None = None
    node_bandwidth_up: Mapping[int, BitsPerSecond] = field(default_factory=dict)
    node_bandwidth_down: Mapping[int, BitsPerSecond] = field(default_factory=dict)
    regions: Sequence[Region] = ()
    exchange_overlap: float = 0.0
    fragment_overlap: float = 0.0
    library: Library | None = None
    ring_over: Literal["nodes", "devices"] = "nodes"
    connections: int = 1
    window_bytes: Bytes = 0
    first_window_bytes: Bytes = 0
    device_bandwidth: BitsPerSecond | None = None

    def __post_init__(self) -> None:
        for key in RATES:
            if (rate := getattr(self, key)) is not None:
                check_rate(f"cluster.{key}", rate)
        for key in ("node_bandwidth_up", "node_bandwidth_down"):
            for rank, rate in getattr(self, key).items():
                check_rate(f"cluster.{key}.{rank}", rate)
        if self.regions and self.collective not in RINGS:
            raise ConfigError(
                "cluster.collective",
                f"of all-reduces between regions only rings are modelled, not {self.collective}: "
                "use cluster.collective=ring or hierarchical.",
            )
        self.check_hosts()
        for key in ("devices_per_node", "connections"):
            check_positive(f"cluster.{key}", getattr(self, key))
        for key in ("step_batch", "step_seconds", "node_factors"):
            for name, value in getattr(self, key).items():
                check_positive(f"cluster.{key}.{name}", value)
        for key in NOT_NEGATIVE:
            check_not_negative(f"cluster.{key}", getattr(self, key) or 0.0)
        for key in self.validated:
            if key not in VALIDATED:
                raise ConfigError(
                    f"cluster.validated.{key}",
                    f"there is no such limit; use {', '.join(VALIDATED)}.",
                )
        if self.heterogeneity:
            check_power("cluster.heterogeneity", self.heterogeneity, -2)
        if self.bucket_bytes < 1:
            raise ConfigError("cluster.bucket_bytes", f"{self.bucket_bytes} must be at least 1.")
        for key in ("overlap", "exchange_overlap", "fragment_overlap"):
            if not 0 <= (share := getattr(self, key)) < 1:
                raise ConfigError(f"cluster.{key}", f"{share} must be in [0, 1).")

    def beyond(self, nodes: int, model_bytes: float) -> str | None:
        """Return a sentence if the run is outside the validated range, else None."""
        limits = self.validated
        least, most = limits.get("least_bytes", 0.0), limits.get("most_bytes", inf)
        rate = limits.get("bandwidth", self.bandwidth)
        here = [
            said
            for said, within in (
                (bit_rate(self.bandwidth), self.bandwidth == rate),
                (counted(nodes, "node"), nodes <= limits.get("nodes", inf)),
                (f"a model of {num_bytes(model_bytes)}", least <= model_bytes <= most),
                (
                    "unequal links",
                    not limits or not any(getattr(self, key) for key in UNEQUAL_LINKS),
                ),
                ("regions", not limits or not self.regions),
            )
            if not within
        ]
        if not here:
            return None
        there = [bit_rate(rate)]
        if "nodes" in limits:
            there.append(f"up to {counted(int(limits['nodes']), 'node')}")
        if "most_bytes" in limits:
            sizes = dict.fromkeys((num_bytes(least), num_bytes(most)))
            there.append(f"models of {' to '.join(sizes)}")
        return (
            f"Outside what the times of cluster={self.name} were validated for "
            f"({', '.join(there)}): {', '.join(here)}."
        )

    def check_hosts(self) -> None:
        """Raise ConfigError for settings that conflict with ``cores_per_host`` or require it."""
        if self.cores_per_host is None:
            for key in HOST_KEYS:
                if getattr(self, key):
                    raise ConfigError(
                        f"cluster.{key}",
                        "processors are shared only where cluster.cores_per_host says how many a "
                        "host has: set that too.",
                    )
            return
        check_positive("cluster.cores_per_host", self.cores_per_host)
        if self.ranks_per_host is not None:
            check_positive("cluster.ranks_per_host", self.ranks_per_host)
        if self.input_seconds:
            raise ConfigError(
                "cluster.input_seconds",
                "loading beside a gradient is not modelled on processors that ranks share: "
                "use cluster.input_seconds=0, or cluster.cores_per_host=null.",
            )

    def check(self, nodes: int, servers: int) -> None:
        """Raise ConfigError for ranks that the run does not have, or for regions of other sizes.

        A parameter server has a link but computes no gradients.
        """
        check_ranks("cluster.node_factors", self.node_factors, nodes)
        check_ranks("cluster.node_bandwidth_up", self.node_bandwidth_up, nodes + servers)
        check_ranks("cluster.node_bandwidth_down", self.node_bandwidth_down, nodes + servers)
        check_regions(self.regions, nodes)

    def among(self, new: Mapping[int, int]) -> Cluster:
        """Return the cluster of only the ranks in ``new``, which maps old ranks to new ranks."""

        def kept(values: Mapping[int, float]) -> dict[int, float]:
            return {new[rank]: value for rank, value in values.items() if rank in new}

        return replace(
            self,
            node_factors=kept(self.node_factors),
            node_bandwidth_up=kept(self.node_bandwidth_up),
            node_bandwidth_down=kept(self.node_bandwidth_down),
            regions=left_in(self.regions, new),
        )

    def up(self, rank: int) -> float:
        """Return the bits per second that ``rank`` sends."""
        return self.node_bandwidth_up.get(rank, self.bandwidth_up or self.bandwidth)

    def down(self, rank: int) -> float:
        """Return the bits per second that ``rank`` receives."""
        return self.node_bandwidth_down.get(rank, self.bandwidth_down or self.bandwidth)

    def mean_step(self, model: str, batch_size: int, unlisted: float | None = None) -> float:
        """Return the mean seconds of a gradient of ``model`` on ``batch_size`` samples per node.

        unlisted: seconds if step_seconds does not list the model; None: the default in step_seconds
        """
        default = self.step_seconds.get("default") if unlisted is None else unlisted
        seconds = self.step_seconds.get(model, default)
        if seconds is None:
            raise ConfigError(
                f"cluster.step_seconds.{model}",
                "no compute time for this model; add it, or a default.",
            )
        seconds *= batch_size / self.step_batch.get(model, batch_size)
        if seconds < self.input_seconds:
            raise ConfigError(
                "cluster.input_seconds",
                f"{self.input_seconds} is more than the {seconds:.3g} s of a gradient of {model}.",
            )
        return seconds

    def all_reduce_seconds(self, nodes: int, num_bytes: float, slowest_link: float = 1.0) -> float:
        """Return the time of an all-reduce that all ``nodes`` start at the same time.

        slowest_link: divisor of the bandwidth of the slowest interface, for which rounds wait

        In half duplex, sending and receiving take turns. Laws: `sgp_runner.cluster.collectives`.
        """
        if nodes == 1:
            return 0.0
        start, transfer = self.slowest_hop(nodes, num_bytes, slowest_link)
        add = num_bytes * self.host_seconds_per_byte
        if self.collective not in RINGS:
            return all_reduce_in_rounds(self.collective, nodes, start, transfer, add)
        ranks, window = self.ranks_of_ring(nodes), self.first_window_bytes
        seconds = ring_all_reduce(self.library, ranks, num_bytes, start, transfer, add, window)
        if self.collective == "hierarchical":
            seconds += self.inside_seconds(num_bytes, slowest_link)
        return seconds

    def ranks_of_ring(self, nodes: int) -> int:
        """Return the number of nodes, of devices, or of the regions' leaders in a ring."""
        if self.collective == "hierarchical":
            return len(crossings(self.regions)) or nodes
        return nodes * self.devices_per_node if self.ring_over == "devices" else nodes

    def inside_seconds(self, num_bytes: float, slowest_link: float) -> float:
        """Return the time to reduce inside each region or node, and to broadcast there."""
        if crossings(self.regions):
            ranks = max(region.nodes for region in self.regions)
            start, whole = replace(self, regions=()).slowest_hop(ranks, num_bytes, slowest_link)
        else:
            ranks, start = self.devices_per_node, 0.0
            whole = num_bytes * 8 / (self.device_bandwidth or inf)
        return reduce_and_broadcast(ranks, num_bytes, start, whole)

    def all_gather_seconds(self, nodes: int, num_bytes: float, slowest_link: float = 1.0) -> float:
        """Return the time of an all-gather of ``num_bytes`` per node (ring or doubling)."""
        start, transfer = self.slowest_hop(nodes, num_bytes, slowest_link)
        if self.library == "nccl":
            return pipelined_all_gather(nodes, num_bytes, start, transfer)
        return self.all_gather_rounds(nodes) * start + (nodes - 1) * transfer

    def slowest_hop(self, nodes: int, num_bytes: float, slowest_link: float) -> tuple[float, float]:
        """Return the latency of a message of a collective, and the transfer time of ``num_bytes``.

        Every round waits for its slowest message. Therefore all interfaces have the rate of the
        slowest interface, which is the rate of its slower direction (half duplex: of both in turn).
        A ring through regions in rank order leaves and enters each region once. All its hops have
        the longest latency and the lowest rate of these crossings, which is an upper limit if they
        belong to different crossings.
        """
        start, rates = self.all_reduce_latency_seconds, self.interfaces(nodes)
        if start is None:
            start = self.latency_seconds + self.message_overhead_seconds
        if self.all_reduce_bandwidth is not None:
            rates = {(self.all_reduce_bandwidth, self.all_reduce_bandwidth)}
        transfer = max(
            num_bytes * 8 * slowest_link / min(pair) * self.turns(*pair) for pair in rates
        )
        for latency, rate in crossings(self.regions):
            start = max(start, latency + self.message_overhead_seconds)
            transfer = max(transfer, num_bytes * 8 / rate)
        window_rate = connection_rate(inf, 2 * start, self.window_bytes, self.connections)
        return start, max(transfer, num_bytes * 8 / window_rate)

    def interfaces(self, nodes: int) -> set[tuple[float, float]]:
        """Return the distinct pairs of rates, up and down, of ``nodes`` nodes."""
        single = bool(self.node_bandwidth_up or self.node_bandwidth_down)
        return {(self.up(rank), self.down(rank)) for rank in range(nodes if single else 1)}

    def turns(self, up: float, down: float) -> float:
        """Return the time to send and receive a byte, relative to the slower direction."""
        return 1 + min(up, down) / max(up, down) if self.duplex == "half" else 1

    def all_gather_rounds(self, nodes: int) -> int:
        return nodes - 1 if self.collective in RINGS else ceil(log2(nodes))

    def all_reduce_rounds(self, nodes: int) -> int:
        """Return the number of consecutive rounds of an all-reduce."""
        if self.collective in RINGS:
            return 2 * (self.ranks_of_ring(nodes) - 1)
        return (1 if self.collective == "recursive_doubling" else 2) * ceil(log2(nodes))

    def all_reduce_bytes(self, nodes: int, num_bytes: float) -> float:
        """Return the bytes that one node sends in an all-reduce.

        In trees and hierarchical all-reduces, it is the mean over nodes.
        """
        if self.collective == "recursive_doubling":
            return ceil(log2(nodes)) * num_bytes
        ranks = nodes if self.collective == "hierarchical" else self.ranks_of_ring(nodes)
        return 2 * (ranks - 1) / ranks * num_bytes
