"""``network=gloo``: real processes on CPUs, one per device, started here or by a launcher.

Launchers are torchrun, srun and mpirun.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

from sgp_runner.assembly.networks import (
    check_devices,
    check_real,
    check_shard,
    cut_of,
    leader_mode,
)
from sgp_runner.cluster.checks import check_positive
from sgp_runner.config.run import Run
from sgp_runner.core.problem import Compute
from sgp_runner.core.survivors import SILENCE_SECONDS, VOTE_SECONDS, LossDetection
from sgp_runner.distributed.world import World
from sgp_runner.utils.devices import check_present, count_gpus
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.launchers import Launched, own_local_rank, rendezvous
from sgp_runner.utils.units import BitsPerSecond, Seconds


@dataclass(frozen=True)
class Gloo:
    """Real messages between processes on CPUs, over TCP or through the memory of one machine.

    gossip: how nodes of several devices (gpus_per_node) exchange messages: shards (every device
        moves its shard of each message), leader (the first device runs the algorithm, the others
        compute gradients), or auto (leader for asynchronous algorithms and servers, else shards)
    all_reduce: ring (of all devices), or hierarchical: the devices of each node average, then the
        first devices of all nodes average in a ring and broadcast the result within their nodes
    shard: state: each device of a node holds only its part of the state of optimizer and algorithm,
        and gathers the parameters for each gradient; none: it holds all
    device: where a rank computes: cpu, cuda (ranks are assigned a machine's GPUs round-robin),
        cuda:1, or auto (a GPU if there is one)
    autocast: none | bf16 | fp16: type of the forward pass under PyTorch's autocast
    channels_last: whether convolutions use the channels-last layout; auto: on a GPU, with autocast
    compile: whether to compile the model with torch.compile
    timeout_seconds: how long a rank may wait for other ranks; then the run ends with a report of
        all waiting ranks
    start_timeout_seconds: how long ranks may wait at the start for a missing rank, and how long a
        rank may make no progress before its first step
    vote_seconds: how long the remaining ranks wait for each other's answers after a rank is lost; a
        rank that does not answer is lost too
    silence_seconds: with on_failure=continue, how long a rank may send no heartbeat while another
        rank waits
    bandwidth: imitated rate of each node's link in either direction, in bit/s; 100e6 is 100 Mbit/s;
        null: the real network
    latency_seconds: imitated one-way latency of each link, in s
    shared_memory: false: ranks of one machine also exchange messages over TCP, as they always do
        over imitated links
    """

    gossip: Literal["auto", "shards", "leader"] = "auto"
    all_reduce: Literal["ring", "hierarchical"] = "ring"
    shard: Literal["none", "state"] = "none"
    device: str = "cpu"
    autocast: Literal["auto", "none", "bf16", "fp16"] = "auto"
    channels_last: bool | Literal["auto"] = "auto"
    compile: bool = False
    timeout_seconds: Seconds = 1800
    start_timeout_seconds: Seconds = 300
    vote_seconds: Seconds = VOTE_SECONDS
    silence_seconds: Seconds = SILENCE_SECONDS
    bandwidth: BitsPerSecond | None = None
    latency_seconds: Seconds = 0.0
    shared_memory: bool = True
    name: ClassVar[str] = "gloo"
    clock: ClassVar[Literal["simulated", "wall"]] = "wall"

    def check(self, run: Run) -> None:
        check_real(run)
        check_positive("network.vote_seconds", self.vote_seconds)
        check_positive("network.silence_seconds", self.silence_seconds)
        check_devices(run, self.gossip, self.autocast)
        check_shard(run, self.shard, self.gossip)
        if self.all_reduce == "hierarchical":
            check_hierarchical(run, self.shard)
        if self.device != "cpu":
            check_shared_gpu(run)
        if self.bandwidth is not None:
            check_positive("network.bandwidth", self.bandwidth)
        if not 0 <= self.latency_seconds < inf:
            raise ConfigError(
                "network.latency_seconds",
                f"{self.latency_seconds} must be zero or positive, and finite.",
            )
        if self.slowed and run.gpus_per_node > 1:
            raise ConfigError(
                "network.bandwidth",
                "slow links can only be imitated for nodes of one device: use gpus_per_node=1.",
            )

    @property
    def loss_detection(self) -> LossDetection:
        return LossDetection(self.vote_seconds, self.silence_seconds)

    @property
    def slowed(self) -> bool:
        """Return whether slow links are imitated."""
        return self.bandwidth is not None or self.latency_seconds > 0

    def check_start(self, run: Run, process: Launched | None) -> None:
        check_present(self.device)
        if (
            process
            and run.on_failure == "continue"
            and (process.launcher == "mpirun" or "TORCHELASTIC_RUN_ID" in os.environ)
        ):
            ends = f"{process.launcher} ends all ranks when one of them does"
            raise ConfigError(
                "on_failure", f"{ends}: use on_failure=stop, or start the run without it."
            )

    def world(self, run: Run, process: Launched) -> World:
        os.environ.update(rendezvous(process))
        from sgp_runner.distributed.torch_world import TorchWorld
        from sgp_runner.distributed.traffic_shaper import TrafficShaper

        shaper = TrafficShaper(self.bandwidth or inf, self.latency_seconds) if self.slowed else None
        return TorchWorld(
            run.gpus_per_node,
            leader_mode(run, self.gossip),
            replace(self.compute, device=self.own_device(process.rank, run)),
            shaper=shaper,
            start_seconds=self.start_timeout_seconds,
            cut=cut_of(run, self.shard),
            shares_memory=self.shared_memory,
            hierarchical=self.all_reduce == "hierarchical",
        )

    @property
    def compute(self) -> Compute:
        return Compute(self.device, self.autocast, self.channels_last, self.compile)

    def own_device(self, rank: int, run: Run) -> str:
        """Return the device of a process; a server computes on its CPU."""
        if self.device != "cuda" or rank >= run.nodes:
            return "cpu" if rank >= run.nodes else self.device
        return f"cuda:{own_local_rank() % count_gpus()}"


def check_hierarchical(run: Run, shard: str) -> None:
    """Raise ConfigError for a run whose all-reduces cannot start within a node."""
    key, way_out = "network.all_reduce", "network.all_reduce=ring."
    if run.gpus_per_node == 1:
        raise ConfigError(
            key,
            "hierarchical averages over the devices of a node first: "
            f"use gpus_per_node=2 or more, or {way_out}",
        )
    if shard == "state":
        raise ConfigError(
            key, f"devices that hold parts of the state each average their own part: use {way_out}"
        )


def check_shared_gpu(run: Run) -> None:
    """Raise ConfigError for settings that ranks with shared GPUs do not support."""
    if run.gpus_per_node > 1:
        raise ConfigError(
            "gpus_per_node",
            "over gloo, ranks share GPUs as nodes of one device: "
            "use gpus_per_node=1, or network=nccl.",
        )
    if run.faults.any:
        raise ConfigError(
            "faults",
            "gradients on a GPU cannot be slowed artificially: "
            "use network.device=cpu, or faults=none.",
        )
