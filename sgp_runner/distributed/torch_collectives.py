"""All-reduces and all-gathers over torch.distributed, and handling of its connection errors."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Timer
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from sgp_runner.core.comm import all_gather_bytes, all_reduce_bytes
from sgp_runner.core.scheduler import Future, RealClock, Scheduler
from sgp_runner.distributed.shared_mean import SharedMean
from sgp_runner.distributed.traffic_shaper import TrafficShaper
from sgp_runner.utils.errors import Aborted, LostConnection, MembershipChanged, RankFailed
from sgp_runner.utils.shard import Shard
from sgp_runner.utils.waits import waiting_for

T = TypeVar("T")
NODE = "waits for the devices of its node"
# The name of `all_gather_into_tensor` since PyTorch deprecated that one.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def connection_to(rank: int) -> AbstractContextManager[None]:
    return named(f"lost its connection to rank {rank}")


@contextmanager
def named(what: str) -> Iterator[None]:
    """Convert errors of gloo and NCCL to LostConnection, as another process may be lost."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, MembershipChanged | Aborted | RankFailed) or is_out_of_memory(error):
            raise
        raise LostConnection(f"rank {dist.get_rank()} {what}") from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether ``error`` is a failed allocation in GPU or main memory."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@dataclass(frozen=True)
class Hierarchy:
    """Mean over nodes of a tensor that is identical on the devices of each node.

    The first devices of all nodes form a ring, and each broadcasts the result in its node.

    leaders: process group of the first devices only
    node: process group of this node
    """

    leaders: dist.ProcessGroup
    node: dist.ProcessGroup
    nodes: int
    device: int

    def begin(self, tensor: Tensor) -> dist.Work | None:
        """Start the ring on the first device; None on the others."""
        if self.device:
            return None
        ring: dist.Work | None = dist.all_reduce(tensor, group=self.leaders, async_op=True)
        return ring

    def end(self, tensor: Tensor, ring: dist.Work | None) -> None:
        """Wait for the ``ring`` and broadcast the mean, in place."""
        with waiting_for("waits for an average over nodes"):
            if ring is not None:
                ring.wait()
                tensor /= self.nodes
            dist.broadcast(tensor, group=self.node, group_src=0)

    def average(self, tensor: Tensor) -> None:
        self.end(tensor, self.begin(tensor))


@dataclass(frozen=True)
class MessageParts:
    """Transfer of equal tensors by the devices of a node, each of which moves a ``part``.

    peers: process group of the same device of all nodes
    node: process group of this node
    """

    part: Shard
    peers: dist.ProcessGroup
    node: dist.ProcessGroup

    def piece(self, tensor: Tensor) -> Tensor:
        """Return this device's part of ``tensor`` [n], padded to the longest part."""
        total = tensor.numel()
        piece = tensor[self.part.of(total)]
        return pad(piece, (0, self.part.length(total) - piece.numel()))

    def whole(self, piece: Tensor, total: int) -> Tensor:
        """Assemble the tensor [total] from the ``piece`` of each device of the node."""
        whole = piece.new_empty(piece.numel() * self.part.count)
        with waiting_for(NODE):
            all_gather_single(whole.view(torch.uint8), piece.view(torch.uint8), group=self.node)
        return whole[:total]

    def all_whole(self, pieces: list[Tensor], total: int) -> list[Tensor]:
        return [self.whole(piece, total) for piece in pieces]


class TorchCollectives:
    """All-reduces and all-gathers over ``group``.

    nodes: number of nodes, each with the same number of processes in the group
    shaper: imitated link of this node, if any
    through_host: whether GPU tensors are copied to the host, because the group uses gloo
    hierarchy: how devices of a node with equal tensors all-reduce; None: in a ring over the group
    shards: how these devices all-gather; None: one process of the group per node
    shared: how processes of one machine all-reduce, if all are on one

    Gloo reports the end of a collective on another thread. In an NCCL group, only the device waits,
    when the result is awaited.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: RealClock,
        group: dist.ProcessGroup,
        nodes: int,
        shaper: TrafficShaper | None = None,
        through_host: bool = False,
        hierarchy: Hierarchy | None = None,
        shared: SharedMean | None = None,
        shards: MessageParts | None = None,
    ) -> None:
        self.scheduler, self.clock = scheduler, clock
        self.hierarchy, self.shared, self.shards = hierarchy, shared, shards
        self.group, self.nodes, self.shaper = group, nodes, shaper
        self.through_host = through_host

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        num_bytes = all_reduce_bytes(tensor, self.nodes)
        shaped = self.shaped(num_bytes, 2 * (self.nodes - 1))
        copy = self.staged(tensor)
        what = ("all-reduce", number, None)
        if (hierarchy := self.hierarchy) is not None:
            ring = hierarchy.begin(copy)
            return self.awaited(
                what, copy, lambda: hierarchy.end(copy, ring), lambda: copy
            ), num_bytes
        if (shared := self.shared) is not None:

            def mean() -> Tensor:
                torch.cat(shared.mean([copy.view(-1)]), out=copy.view(-1))
                return copy

            return self.started(shared, what, mean), num_bytes
        work = dist.all_reduce(copy, group=self.group, async_op=True)
        return self.result(
            what,
            copy,
            work,
            shaped,
            lambda: copy.div_(self.group.size()).to(tensor.device, non_blocking=True),
        ), num_bytes

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        num_bytes = all_gather_bytes(tensor, self.nodes)
        shaped = self.shaped(num_bytes, self.nodes - 1)
        copy, group, shards = self.staged(tensor), self.group, self.shards
        if shards is not None:
            copy, group = shards.piece(copy), shards.peers
        parts = copy.new_empty(self.nodes, *copy.shape, pin_memory=copy.device != tensor.device)
        flat = parts.view(-1).view(torch.uint8), copy.view(-1).view(torch.uint8)
        what = ("all-gather", number, None)
        if self.shared is not None:

            def gather() -> list[Tensor]:
                all_gather_single(*flat, group=group)
                return [*parts]

            return self.started(self.shared, what, gather), num_bytes
        work = all_gather_single(*flat, group=group, async_op=True)
        finish = None if shards is None else partial(shards.all_whole, total=tensor.numel())
        return self.result(
            what, copy, work, shaped, lambda: [*parts.to(tensor.device, non_blocking=True)], finish
        ), num_bytes

    def close(self) -> None:
        """Release the groups after the last collective."""
        self.hierarchy = self.shared = self.shards = None
        del self.group

    def staged(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` in a form that the group can send.

        Copies of GPU tensors are in pinned memory, which PyTorch reuses for later copies.
        """
        if not (self.through_host and tensor.is_cuda):
            return tensor
        copy = tensor.to("cpu", non_blocking=True)
        with waiting_for("waits for its device to copy what a collective sends"):
            torch.cuda.current_stream(tensor.device).record_event().synchronize()
        return copy

    def shaped(self, num_bytes: int, rounds: int) -> torch.futures.Future[float] | None:
        """Return a future of the end (s) of a collective over imitated links; else None."""
        if self.shaper is None:
            return None
        return self.shaper.collective(num_bytes, rounds, self.group)

    def result(
        self,
        what: tuple[Any, ...],
        sent: Tensor,
        work: dist.Work | None,
        shaped: torch.futures.Future[float] | None,
        value: Callable[[], T],
        finish: Callable[[T], T] | None = None,
    ) -> Future[T]:
        """Return a future of ``value``, after ``work`` and, over imitated links, ``shaped``.

        finish: maps the value when it is awaited
        """
        assert work is not None
        lost = f"rank {dist.get_rank()} lost a connection in an {what[0]}"
        if sent.is_cuda:
            return self.awaited(
                what, sent, work.wait, value if finish is None else lambda: finish(value())
            )
        future: Future[T] = self.scheduler.future(what, finish)

        def complete(done: torch.futures.Future[object]) -> None:
            try:
                done.value()
            except RuntimeError as error:
                self.clock.post_error(error if is_out_of_memory(error) else LostConnection(lost))
                return
            resolve = partial(self.end, what[1], future, value)
            if shaped is None or self.shaper is None:
                self.clock.post(resolve)
            else:
                timer = Timer(
                    max(0.0, shaped.wait() - self.shaper.now()), self.clock.post, (resolve,)
                )
                timer.daemon = True
                timer.start()

        work.get_future().add_done_callback(complete)
        return future

    def started(
        self, shared: SharedMean, what: tuple[Any, ...], collective: Callable[[], T]
    ) -> Future[T]:
        """Return a future of a collective executed by the thread of ``shared``."""
        future: Future[T] = self.scheduler.future(what)

        def guarded() -> T:
            with named(f"lost a connection in an {what[0]}"):
                return collective()

        def complete(done: concurrent.futures.Future[T]) -> None:
            if (error := done.exception()) is not None:
                assert isinstance(error, Exception)
                self.clock.post_error(error)
            else:
                self.clock.post(partial(self.end, what[1], future, done.result))

        shared.start(guarded).add_done_callback(complete)
        return future

    def awaited(
        self,
        what: tuple[Any, ...],
        sent: Tensor,
        wait: Callable[[], object],
        value: Callable[[], T],
    ) -> Future[T]:
        """Return a future of ``value``, which runs ``wait`` when it is awaited."""

        def finish(_: T) -> T:
            lost_connection = named(f"lost a connection in an {what[0]}")
            with lost_connection, self.clock.meter.waiting(sent.device):
                wait()
            return value()

        future: Future[T] = self.scheduler.future(what, finish)
        self.scheduler.resolve(future, cast("T", None))
        return future

    def end(self, number: int, future: Future[T], value: Callable[[], T]) -> None:
        self.clock.ends(number)
        self.scheduler.resolve(future, value())
