"""World: all processes of a real run and their operations, except message passing."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from sgp_runner.core.comm import Transport
from sgp_runner.core.mailbox import Mailbox
from sgp_runner.core.parts import Cut
from sgp_runner.core.problem import Compute
from sgp_runner.core.scheduler import RealClock, Scheduler
from sgp_runner.distributed.rank_layout import RankLayout
from sgp_runner.utils.errors import RankFailed

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed.distributed_c10d import ProcessGroup, Store

    from sgp_runner.distributed.shared_mean import SharedMean
    from sgp_runner.distributed.torch_collectives import Hierarchy
    from sgp_runner.distributed.traffic_shaper import TrafficShaper


class World(Protocol):
    """The processes of one run.

    All of them call the same methods in the same order: ``connect`` first, ``close`` last.

    process_rank, size: rank of this process and number of processes, servers included
    layout: the device and node of this process
    store: store of this run
    alarm: store to which the first failing rank writes its error, over a separate connection
    workers: process group of the gradient workers for PyTorch's data parallelism; None without one
    node, node_cpu_group: process groups of this node's devices, for tensors on devices and for
        values on CPUs; None with one device
    hierarchy: how the devices of this node average over nodes, if all-reduces are hierarchical
    shared_mean: how the nodes average in shared memory, if all are on one machine
    shaper: the imitated link of this node, if any
    leader_mode: whether the first device of this node runs the algorithm alone
    running: process ranks that run the algorithm, servers included
    compute: how this process computes gradients
    cut: ends of the parts into which the devices of a node divide all vectors; None: each device
        holds whole vectors
    in_order: whether coroutines must wake in an order independent of the arrival of messages
    """

    process_rank: int
    size: int
    store: Store
    alarm: Store
    layout: RankLayout
    running: Sequence[int]
    compute: Compute
    workers: ProcessGroup | None = None
    node: ProcessGroup | None = None
    node_cpu_group: ProcessGroup | None = None
    hierarchy: Hierarchy | None = None
    shared_mean: SharedMean | None = None
    shaper: TrafficShaper | None = None
    leader_mode: bool = False
    in_order: bool = False
    cut: Cut | None = None

    def connect(self, nodes: int) -> None:
        """Connect the processes of ``nodes`` gradient workers (which come first) and of servers."""

    def transport(self, scheduler: Scheduler, clock: RealClock, mailbox: Mailbox) -> Transport:
        """Return the transport between this rank (with its ``mailbox``) and the others."""

    def gather(self, value: object) -> list[Any]:
        """Return the values of all processes, by process rank, on every process.

        Values are sent as JSON: see `sgp_runner.distributed.json_collectives`.
        """

    def all_gather_workers(self, value: object) -> list[Any]:
        """Return the values of the processes in ``running``; only these call this method."""

    def mean(self, tensor: Tensor) -> None:
        """Average in place over processes with a gradient worker; only these call this method.

        Devices that hold parts average with the same device of all nodes.
        """

    def close(self) -> None:
        """Close the connections after all processes have arrived here without an error."""


def check_agreement(world: World, what: str, value: str) -> None:
    """Raise RankFailed on all ranks, naming those that differ, unless all values are equal."""
    values = world.gather(value)
    if different := [rank for rank, other in enumerate(values) if other != values[0]]:
        where = ("rank " if len(different) == 1 else "ranks ") + ", ".join(map(str, different))
        raise RankFailed(
            f"the {what} is {values[0]} on rank 0 but {values[different[0]]} on {where}: "
            "start all ranks with the same command and code."
        )


def checksum(params: Tensor) -> str:
    return sha256(params.cpu().numpy().tobytes()).hexdigest()[:16]


def check_alike(processes: list[Any], layout: RankLayout) -> None:
    """Raise RankFailed unless all devices of a node finished with the same parameters."""
    ends = [
        end["checksum"]
        for process, end in enumerate(processes)
        if end is not None and layout.node_rank_of(process) == layout.node_rank
    ]
    if len(set(ends)) > 1:
        raise RankFailed(
            f"the devices of rank {layout.node_rank} ended with different parameters: "
            f"{', '.join(ends)}"
        )
