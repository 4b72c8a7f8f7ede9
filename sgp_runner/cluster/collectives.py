"""Settings of all-reduces and all-gathers: algorithm, library and overlap with gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sgp_runner.cluster.checks import check_each_not_negative, check_rate
from sgp_runner.cluster.collective_laws import Library
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.units import BitsPerSecond, Bytes, Seconds

CollectiveAlgorithm = Literal[
    "ring", "recursive_doubling", "halving_doubling", "tree", "hierarchical"
]


@dataclass(frozen=True)
class Collectives:
    """The all-reduces and all-gathers of a cluster.

    algorithm: the all-reduce algorithm. hierarchical: reduce inside each region, or inside each
        node if there are none, then a ring of the leaders, then broadcast; between regions,
        all-gathers likewise gather inside each region, then in a ring of the leaders, then
        broadcast
    library: timing model of a ring: nccl (chunks are sent in slices, which hides latency), gloo
        (two segments in flight), or null (every round includes a latency)
    ring_over: ranks of a ring: nodes, which reduce internally first, or all devices, without prior
        reduction; a ring of devices enters and leaves each node once
    overlap: share of a gradient's compute time during which its all-reduce can already run
        (bucketed backward pass)
    bucket_bytes: size of the last bucket, whose all-reduce starts only when the gradient is
        complete
    exchange_overlap: share of the last gradient's compute time during which an all-reduce or
        all-gather of the local change can already run
    fragment_overlap: like exchange_overlap, for the exchange of one fragment of the model
    all_reduce_bandwidth: measured bits per second of a node's interface in an all-reduce; null: the
        bandwidth of the links
    all_reduce_latency_seconds: measured latency of a round of an all-reduce; null: latency_seconds
        plus message_overhead_seconds of the links
    device_bandwidth: bits per second between devices of a node, for hierarchical collectives; null:
        transfers inside a node take no time
    connect_seconds: extra time of a run's first collective, during which libraries such as NCCL
        connect the nodes
    """

    algorithm: CollectiveAlgorithm = field(default="ring", metadata={"was": "collective"})
    library: Library | None = None
    ring_over: Literal["nodes", "devices"] = "nodes"
    overlap: float = 0.0
    bucket_bytes: Bytes = 25 * 2**20
    exchange_overlap: float = 0.0
    fragment_overlap: float = 0.0
    all_reduce_bandwidth: BitsPerSecond | None = None
    all_reduce_latency_seconds: Seconds | None = None
    device_bandwidth: BitsPerSecond | None = None
    connect_seconds: Seconds = 0.0

    def __post_init__(self) -> None:
        key = "cluster.collectives"
        for name in ("all_reduce_bandwidth", "device_bandwidth"):
            if (rate := getattr(self, name)) is not None:
                check_rate(f"{key}.{name}", rate)
        check_each_not_negative(self, key, "all_reduce_latency_seconds", "connect_seconds")
        check_least(1, key, self, "bucket_bytes")
        for name in ("overlap", "exchange_overlap", "fragment_overlap"):
            if not 0 <= (share := getattr(self, name)) < 1:
                raise ConfigError(f"{key}.{name}", f"{share} must be in [0, 1).")

    @property
    def has_ring(self) -> bool:
        """Whether all nodes or the leaders of their groups form a ring."""
        return self.algorithm in ("ring", "hierarchical")
