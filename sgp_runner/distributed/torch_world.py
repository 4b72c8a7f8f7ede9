"""`World` over torch.distributed: gloo connects the hosts, NCCL moves the tensors of GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # else its default arguments keep the first group
from torch.distributed.distributed_c10d import PrefixStore

from sgp_runner.core.comm import Transport
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.parts import PART_MULTIPLE, Cut
from sgp_runner.core.problem import ON_CPU, Compute
from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.gloo_transport import GlooTransport
from sgp_runner.distributed.json_collectives import all_gather
from sgp_runner.distributed.local_causes import explaining_local_causes
from sgp_runner.distributed.nccl_transport import NcclTransport
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.distributed.rendezvous import meet
from sgp_runner.distributed.sharded import ShardedTransport
from sgp_runner.distributed.shared_mean import SharedMean
from sgp_runner.distributed.shared_memory import SharedMemory
from sgp_runner.distributed.torch_collectives import (
    Hierarchy,
    MessageParts,
    TorchCollectives,
    named,
)
from sgp_runner.distributed.traffic_shaper import TrafficShaper
from sgp_runner.distributed.world import World
from sgp_runner.utils.devices import check_own_gpus, use_gpu
from sgp_runner.utils.shard import WHOLE, Shard
from sgp_runner.utils.waits import run_abandonable, waiting_for

FOREVER = timedelta(days=365)
START_SECONDS = 300.0
GROUPS = (
    "algorithm_group",
    "all_ranks",
    "p2p_groups",
    "workers",
    "averaging",
    "peers",
    "node",
    "node_cpu_group",
    "hierarchy",
    "memory",
    "headers",
    "shared_mean",
)
RUNS = count()  # numbers this process's runs, which may share a launcher's store


class TorchWorld(World):
    """The processes described by a launcher in the environment, as by ``torchrun``.

    devices: number of devices per node
    leader_mode: whether the first device runs the algorithm and the others only compute gradients
    backend: backend of the groups that move tensors between devices
    paired: whether messages move in `NcclTransport`'s exchanges instead of over gloo
    shaper: the imitated link of this node, which must have one device; None: real links
    start_seconds: maximum time for the ranks to find each other
    shares_memory: whether messages between processes of one machine may go through its memory
    joins: whether the processes already have a default process group, which this world leaves
        unchanged
    cut: ends of the parts into which the devices of a node divide all vectors; None: not divided
    hierarchical: whether nodes of several devices all-reduce as a `Hierarchy`
    """

    memory: SharedMemory | None = None
    headers: dist.ProcessGroup | None = None

    def __init__(
        self,
        devices: int = 1,
        leader_mode: bool = False,
        compute: Compute = ON_CPU,
        backend: str = "gloo",
        paired: bool = False,
        shaper: TrafficShaper | None = None,
        start_seconds: float = START_SECONDS,
        shares_memory: bool = False,
        joins: bool = False,
        cut: Cut | None = None,
        hierarchical: bool = False,
    ) -> None:
        store, self.process_rank, self.size = joined() if joins else meet(start_seconds)
        self.stores = store, store.clone()  # keeps stores that are Python objects alive
        # torchrun may restart its ranks and keep the store.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.alarm = PrefixStore(f"alarm {attempt}", self.stores[1])
        self.store = PrefixStore(f"attempt {attempt}, run {next(RUNS)}", store)
        self.devices, self.compute, self.backend = devices, compute, backend
        self.paired, self.shaper, self.shares_memory = paired, shaper, shares_memory
        self.joins, self.cut, self.hierarchical = joins, cut, hierarchical
        self.leader_mode = leader_mode and devices > 1
        self.created: list[dist.ProcessGroup] = []
        self.device = torch.device(compute.device)
        use_gpu(compute.device, compute.autocast)

    def connect(self, nodes: int) -> None:
        def start() -> None:
            dist.init_process_group(
                "gloo",
                store=self.store,
                rank=self.process_rank,
                world_size=self.size,
                timeout=FOREVER,
            )

        with explaining_local_causes(self.process_rank, self.backend):
            if not self.joins:
                run_abandonable(start, "waits for all ranks to start")
            with waiting_for("waits for all ranks to make their groups"):
                self.make_groups(nodes)
        self.memory = self.shared_memory(nodes)

    def shared_memory(self, nodes: int) -> SharedMemory | None:
        """Return memory shared with the processes found to be on this machine.

        If all nodes are on one machine, they also average in its memory.
        """
        memory = None
        if self.shares_memory and hasattr(os, "memfd_create"):
            with suppress(OSError):
                memory = SharedMemory(self.process_rank, self.size)
        addresses = self.gather(memory and memory.address)
        opened = self.gather(memory and memory.open(addresses))
        if memory is not None:
            memory.readers = {
                process
                for process, others in enumerate(opened)
                if isinstance(others, list) and self.process_rank in others
            }
        together = all(
            isinstance(others, list) and {*others, process}.issuperset(range(nodes))
            for process, others in enumerate(opened[:nodes])
        )
        self.shared_mean = None
        if memory is not None and together and nodes > 1 and self.averages_in_memory:
            self.shared_mean = SharedMean(memory, self.averaging)
        return memory

    @property
    def averages_in_memory(self) -> bool:
        """Return whether nodes on one machine average in its memory: if each has one CPU device."""
        others = self.shaper, self.cut, self.hierarchy, self.node
        on_cpu = self.device.type == "cpu" and not self.layout.is_server
        return on_cpu and not self.paired and all(other is None for other in others)

    def make_groups(self, nodes: int) -> None:
        self.layout = layout = RankLayout(self.process_rank, nodes, self.devices)
        workers = range(nodes * self.devices)
        self.running = [
            *workers[:: self.devices if self.leader_mode else 1],
            *range(len(workers), self.size),
        ]
        self.algorithm_group = self.gloo_group(self.running)
        self.all_ranks, *self.p2p_groups = (self.gloo_group(range(self.size)) for _ in range(3))
        if self.backend == "nccl":
            server = self.device.type == "cpu"
            gpu = None if server else torch.cuda.get_device_properties(self.device)
            check_own_gpus(self.gather(gpu and str(gpu.uuid)))
        if self.joins:
            self.headers = self.gloo_group(range(self.size))
        if self.cut is None:
            self.workers = self.averaging = self.group(workers)
        if self.leader_mode:
            self.averaging = self.group(workers[:: self.devices])
        several = self.devices > 1 and not self.leader_mode
        peers = [self.group(workers[d :: self.devices]) for d in range(several * self.devices)]
        if peers:
            self.peers = peers[layout.device]
        if self.cut is not None:
            self.workers = self.averaging = self.peers
        for rank in range(nodes if self.devices > 1 else 0):  # all processes make every group
            node = self.group(layout.node(rank))
            node_cpu_group = self.gloo_group(layout.node(rank))
            if rank == layout.node_rank:
                self.node, self.node_cpu_group = node, node_cpu_group
        if self.hierarchical:
            leaders = self.averaging if self.leader_mode else peers[0]
            if self.node is not None:  # not on a server
                self.hierarchy = Hierarchy(leaders, self.node, nodes, layout.device)
        self.in_order = self.paired or self.sharded

    def gloo_group(self, processes: Sequence[int]) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(list(processes), FOREVER, backend="gloo")
        self.created.append(group)
        return group

    def group(self, processes: Sequence[int]) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(
            list(processes), backend=self.backend, timeout=FOREVER
        )
        self.created.append(group)
        if self.backend != "gloo" and self.process_rank in processes:
            # NCCL requires all members to take part in the first call of a group.
            dist.all_reduce(torch.zeros(1, device=self.device), group=group)
        return group

    @property
    def sharded(self) -> bool:
        """Return whether all devices of a node run the algorithm and move parts of messages."""
        return self.node is not None and not self.leader_mode

    def transport(self, scheduler: Scheduler, clock: RealClock, mailbox: Mailbox) -> Transport:
        part, shards = WHOLE, None
        if self.node is not None and self.sharded and self.cut is None:
            part = Shard(self.layout.device, self.devices, PART_MULTIPLE)
            shards = MessageParts(part, self.peers, self.node)
        collectives = TorchCollectives(
            scheduler,
            clock,
            self.averaging,
            self.layout.nodes,
            self.shaper,
            through_host=self.backend == "gloo" and self.device.type != "cpu",
            hierarchy=self.hierarchy if self.sharded else None,
            shared=self.shared_mean,
            shards=shards,
        )

        def gloo(
            deliver: Callable[[int, int, torch.Tensor], None], part: Shard, device: torch.device
        ) -> GlooTransport:
            return GlooTransport(
                clock,
                deliver,
                self.layout,
                part,
                collectives,
                device,
                self.p2p_groups[0],
                self.p2p_groups[1],
                self.shaper,
                self.memory if part is WHOLE and self.shaper is None else None,
                self.headers,
            )

        base: Transport
        if self.paired:
            base = NcclTransport(
                lambda deliver: gloo(deliver, WHOLE, torch.device("cpu")),
                mailbox,
                collectives,
                part,
                self.device,
            )
        else:
            base = gloo(mailbox.deliver, part, self.device)
        if not self.sharded:
            return base
        assert self.node_cpu_group is not None
        return ShardedTransport(base, shards, self.node_cpu_group)

    def gather(self, value: object) -> list[Any]:
        with named("lost a connection while all ranks met"):
            return run_abandonable(
                lambda: all_gather(value, self.all_ranks), "waits for all ranks to come together"
            )

    def all_gather_workers(self, value: object) -> list[Any]:
        with named("lost a connection while all nodes met"):
            return run_abandonable(
                lambda: all_gather(value, self.algorithm_group),
                "waits for all nodes to come together",
            )

    def mean(self, tensor: torch.Tensor) -> None:
        def average() -> None:
            if self.shared_mean is None:
                dist.all_reduce(tensor, group=self.averaging)
                tensor.div_(self.averaging.size())
            else:
                self.shared_mean.call(partial(self.shared_mean.mean_over_tcp, tensor))

        with named("lost a connection while all models were averaged"):
            run_abandonable(average, "waits for the average of all models")

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Send the tensor of process ``source`` to all processes, in place."""
        with named("lost a connection while one model was sent to all ranks"):
            run_abandonable(
                lambda: dist.broadcast(tensor, source, group=self.all_ranks), "waits for a model"
            )

    def subset(self, present: Sequence[int]) -> TorchWorld:
        """Return a world of the processes ``present``, including this one; pending waits remain."""
        smaller = copy(self)
        smaller.process_rank, smaller.size = list(present).index(self.process_rank), len(present)
        smaller.store, smaller.alarm = (
            PrefixStore(f"of {list(present)}", store) for store in (self.store, self.alarm)
        )
        self.release()
        return smaller

    def close(self) -> None:
        with named("lost a connection while all ranks ended"):
            run_abandonable(lambda: dist.barrier(self.all_ranks), "waits for all ranks to end")
        self.release()

    def release(self) -> None:
        """Release the groups, whose threads and connections end with their last references."""
        if self.shared_mean is not None:
            self.shared_mean.close()
        if not self.joins and dist.is_initialized():
            dist.destroy_process_group()
        for group in self.created if self.joins else ():
            dist.destroy_process_group(group)
        self.created.clear()  # also in the world of the remaining ranks, a copy
        for name in GROUPS:
            vars(self).pop(name, None)


def joined() -> tuple[Any, int, int]:
    """Return the store of the default process group, the rank of this process and their number."""
    return dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
