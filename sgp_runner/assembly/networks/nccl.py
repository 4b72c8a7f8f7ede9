"""``network=nccl``: one real process per GPU, started here or by a launcher such as torchrun."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar, Literal

from sgp_runner.assembly.networks import (
    check_devices,
    check_real,
    check_shard,
    cut_of,
    leader_mode,
)
from sgp_runner.config.run import Run
from sgp_runner.distributed.world import World
from sgp_runner.topology.verify import topologies, verify
from sgp_runner.utils.devices import count_gpus
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.launchers import Launched, own_local_rank, rendezvous
from sgp_runner.utils.messages import logger
from sgp_runner.utils.units import Seconds


@dataclass(frozen=True)
class Nccl:
    """Real messages between GPUs.

    NCCL cannot receive from any source, so asynchronous algorithms and algorithms with a server
    send their messages over gloo, through pinned memory. Within a node they average gradients over
    NCCL. A server computes on its CPU.

    gossip: how nodes of several devices (gpus_per_node) exchange messages: shards (every device
        runs the algorithm and moves its shard of each message), leader (the first device runs the
        algorithm, the other devices only compute gradients), or auto (leader for asynchronous
        algorithms and algorithms with a server, else shards)
    shard: state: each device of a node holds only its part of the state of optimizer and algorithm,
        and gathers the parameters for each gradient; none: it holds all
    autocast: none | bf16 | fp16: type of the forward pass under PyTorch's autocast
    channels_last: whether convolutions use the channels-last layout; auto: on a GPU, with autocast
    compile: whether to compile the model with torch.compile
    timeout_seconds: how long a rank may wait for other ranks; then the run ends with a report of
        all waiting ranks
    start_timeout_seconds: how long ranks may wait at the start for a missing rank, and how long a
        rank may make no progress before its first step
    """

    gossip: Literal["auto", "shards", "leader"] = "auto"
    shard: Literal["none", "state"] = "none"
    autocast: Literal["auto", "none", "bf16", "fp16"] = "auto"
    channels_last: bool | Literal["auto"] = "auto"
    compile: bool = False
    timeout_seconds: Seconds = 1800
    start_timeout_seconds: Seconds = 300
    name: ClassVar[str] = "nccl"
    device: ClassVar[str] = "cuda"
    clock: ClassVar[Literal["simulated", "wall"]] = "wall"

    def check(self, run: Run) -> None:
        check_real(run)
        if run.faults.any:
            raise ConfigError(
                "faults",
                "gradients on a GPU cannot be slowed artificially: "
                "use network=sim or gloo, or faults=none.",
            )
        check_devices(run, self.gossip, self.autocast)
        check_shard(run, self.shard, self.gossip)
        for topology in topologies(run.algo) if not leader_mode(run, "auto") else ():
            verify(topology, run.nodes, "balanced", "network=nccl", weighted=True)

    def check_start(self, run: Run, process: Launched | None) -> None:
        if process is not None:
            return
        workers, have = run.nodes * run.gpus_per_node, present_gpus()
        if have < workers:
            gpus = f"{have} GPU{'s' if have > 1 else ''}"
            raise ConfigError(
                "nodes",
                f"{run.nodes} of {run.gpus_per_node} GPUs each need {workers}, "
                f"but this machine has {gpus}.",
            )

    def world(self, run: Run, process: Launched) -> World:
        os.environ.update(rendezvous(process))
        from sgp_runner.core.problem import Compute
        from sgp_runner.distributed.torch_world import TorchWorld

        paired = not leader_mode(run, "auto")
        if process.rank == 0 and not paired:
            logger.info(
                f"{run.algo.title} sends its messages over gloo, through pinned memory: "
                "NCCL has no receive from any source."
            )
        device = own_gpu() if process.rank < run.nodes * run.gpus_per_node else "cpu"
        compute = Compute(device, self.autocast, self.channels_last, self.compile)
        return TorchWorld(
            run.gpus_per_node,
            leader_mode(run, self.gossip),
            compute,
            "nccl",
            paired,
            start_seconds=self.start_timeout_seconds,
            cut=cut_of(run, self.shard),
        )


def own_gpu() -> str:
    """Return the GPU with the number LOCAL_RANK, or the only one visible to this process."""
    have, local = present_gpus(), own_local_rank()
    if local >= have > 1:
        raise ConfigError(
            "LOCAL_RANK",
            f"the launcher has started process {local}, but this machine has {have} GPUs: "
            "start one per GPU.",
        )
    return f"cuda:{local if have > 1 else 0}"


def present_gpus() -> int:
    """Return the number of visible GPUs. Raises ConfigError if there are none."""
    if have := count_gpus():
        return have
    raise ConfigError(
        "network", "nccl needs a GPU, and PyTorch finds none on this machine: use network=gloo."
    )
