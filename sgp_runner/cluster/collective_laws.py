"""All-reduces and all-gathers: their algorithm, its cost, and their overlap with gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log2
from typing import Literal

from sgp_runner.cluster.checks import check_each_not_negative, check_rate
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import BitsPerSecond, Bytes, Seconds

CollectiveAlgorithm = Literal["ring", "recursive_doubling", "halving_doubling", "tree"]


@dataclass(frozen=True)
class Collectives:
    """The all-reduces and all-gathers of a cluster.

    algorithm: the all-reduce algorithm
    overlap: share of a gradient's compute time during which its all-reduce can already run
        (bucketed backward pass)
    bucket_bytes: size of the last bucket, whose all-reduce starts only when the gradient is
        complete
    exchange_overlap: share of the last gradient's compute time during which an all-reduce or
        all-gather of the local change can already run, layer by layer at the end of the backward
        pass; it does not affect the results of training
    fragment_overlap: like exchange_overlap, for the exchange of one fragment of the model
    all_reduce_bandwidth: measured bits per second of a node's interface in an all-reduce; null: the
        bandwidth of the links
    all_reduce_latency_seconds: measured latency of a round of an all-reduce; null: latency_seconds
        plus message_overhead_seconds of the links
    connect_seconds: extra time of the first collective of a run, in which libraries such as NCCL
        connect the nodes
    """

    algorithm: CollectiveAlgorithm = field(default="ring", metadata={"was": "collective"})
    overlap: float = 0.0
    bucket_bytes: Bytes = 25 * 2**20
    exchange_overlap: float = 0.0
    fragment_overlap: float = 0.0
    all_reduce_bandwidth: BitsPerSecond | None = None
    all_reduce_latency_seconds: Seconds | None = None
    connect_seconds: Seconds = 0.0

    def __post_init__(self) -> None:
        key = "cluster.collectives"
        if self.all_reduce_bandwidth is not None:
            check_rate(f"{key}.all_reduce_bandwidth", self.all_reduce_bandwidth)
        check_each_not_negative(self, key, "all_reduce_latency_seconds", "connect_seconds")
        if self.bucket_bytes < 1:
            raise ConfigError(f"{key}.bucket_bytes", f"{self.bucket_bytes} must be at least 1.")
        for name in ("overlap", "exchange_overlap", "fragment_overlap"):
            if not 0 <= (share := getattr(self, name)) < 1:
                raise ConfigError(f"{key}.{name}", f"{share} must be in [0, 1).")

    def all_reduce_seconds(self, nodes: int, start: float, transfer: float, add: float) -> float:
        """Return the time of an all-reduce that all ``nodes``, at least two, start together.

        Each round costs a latency and the transfer time of its bytes. Source: Thakur, Rabenseifner
        & Gropp 2005, sections 4.4-4.5.

        start: seconds from the start of a message to its first bit
        transfer: seconds to transfer all bytes of a node
        add: seconds in which the host adds all bytes of a node
        """
        rounds = ceil(log2(nodes))
        match self.algorithm:
            case "ring":
                return 2 * (nodes - 1) * (start + transfer / nodes) + (nodes - 1) / nodes * add
            case "recursive_doubling":
                return rounds * (start + transfer + add)
            case "halving_doubling":
                return 2 * rounds * start + (nodes - 1) / nodes * (2 * transfer + add)
            case "tree":  # reduce to the root, then broadcast
                return rounds * (2 * (start + transfer) + add)

    def all_reduce_rounds(self, nodes: int) -> int:
        """Return the number of consecutive rounds of an all-reduce."""
        rounds = ceil(log2(nodes))
        return {
            "ring": 2 * (nodes - 1),
            "recursive_doubling": rounds,
            "halving_doubling": 2 * rounds,
            "tree": 2 * rounds,
        }[self.algorithm]

    def all_reduce_bytes(self, nodes: int, num_bytes: float) -> float:
        """Return the bytes that one node sends in an all-reduce (tree: the mean over nodes)."""
        if self.algorithm == "recursive_doubling":
            return ceil(log2(nodes)) * num_bytes
        return 2 * (nodes - 1) / nodes * num_bytes

    def all_gather_rounds(self, nodes: int) -> int:
        """Return the number of consecutive rounds of an all-gather (ring or recursive doubling)."""
        return nodes - 1 if self.algorithm == "ring" else ceil(log2(nodes))
