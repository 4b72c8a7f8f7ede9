"""Stand-ins for gloo and NCCL between the processes of the rig, which are threads.

They keep the guarantees of `torch.distributed` and no others:

* NCCL's calls of a group run in order on the group's own stream, after the work that the current
  stream has at the call. `Work.wait` orders the current stream after the call; the host goes on.
* A work holds its tensors until `Work.wait`, and records no stream for them.
* Gloo reads and writes memory of the host at any time between call and end.
* The first call of a group of NCCL is one that all members make: `NotStarted` else.

Values move when a call is waited for. A call that is never waited for leaves its results zero.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from threading import Condition, Thread
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from gpu_rig.judged import block_of
from gpu_rig.pretend_gpu import PretendTensor, values
from gpu_rig.streams import HERE, Event, Stream, own_gpu
from torch import Tensor

from sgp_runner.distributed import torch_collectives, torch_world

SECONDS = 1000.0  # longest wait for another process


class Network:
    """The messages that the processes of one run have sent each other."""

    def __init__(self, processes: int) -> None:
        self.processes = processes
        self.changed = Condition()
        self.sent: defaultdict[Hashable, dict[int, Tensor]] = defaultdict(dict)
        self.tickets: defaultdict[Hashable, Iterator[int]] = defaultdict(count)
        self.announced: defaultdict[Hashable, deque[tuple[int, Tensor]]] = defaultdict(deque)
        self.broken = False

    def send(self, key: Hashable, value: Tensor) -> None:
        """Send the next message ``key``."""
        with self.changed:
            self.sent[key][next(self.tickets["send", key])] = clone(value)
            self.changed.notify_all()

    def ticket(self, key: Hashable) -> int:
        """Return the number of the next message ``key`` to receive."""
        with self.changed:
            return next(self.tickets["receive", key])

    def receive(self, key: Hashable, number: int) -> Tensor:
        return self.wait_for(lambda: self.sent[key].get(number))

    def wait_for(self, value: Callable[[], Any]) -> Any:
        with self.changed:
            self.changed.wait_for(lambda: self.broken or value() is not None, SECONDS)
            found = value()
        if found is None:
            raise RuntimeError("the other process never came")
        return found

    def fail(self) -> None:
        """End all waits."""
        with self.changed:
            self.broken = True
            self.changed.notify_all()


class NotStarted(RuntimeError):
    """A group of NCCL begins with messages between some members, and would wait for the others."""


class Group:
    """A process group, as one of its processes sees it."""

    def __init__(
        self, network: Network, number: int, members: Sequence[int], backend: str = "gloo"
    ) -> None:
        self.network, self.number, self.members = network, number, tuple(members)
        self.started = backend != "nccl"
        self.process = own_gpu().process
        self.stream = Stream()
        self.collectives = count()
        self.held: list[Work] = []  # works without a wait so far

    def size(self) -> int:
        return len(self.members)

    def gather(self, value: Tensor) -> Callable[[], list[Tensor]]:
        """Take part in the next collective; return a function that waits for all values."""
        self.started = True
        key = "collective", self.number, next(self.collectives)
        with self.network.changed:
            self.network.sent[key][self.process] = clone(value)
            self.network.changed.notify_all()
        everyone = self.network.sent[key]

        def wait() -> list[Tensor]:
            self.network.wait_for(lambda: len(everyone) == len(self.members) or None)
            return [everyone[member] for member in self.members]

        return wait


class Work:
    """A call that was begun.

    finish: waits for the others and writes the results
    reads, writes: tensors of the call
    """

    def __init__(
        self,
        group: Group,
        finish: Callable[[], None],
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        kernel: str,
    ) -> None:
        self.group, self.finish, self.kernel = group, finish, kernel
        self.tensors = list(reads), list(writes)
        self.ended: Event | None = None
        if any(isinstance(t, PretendTensor) for t in (*reads, *writes)):
            group.stream.wait_event(HERE.stream.record_event())
            own_gpu().launch(group.stream.number, *self.blocks(), kernel)
            self.ended = group.stream.record_event()
            group.held.append(self)
        else:
            self.on_host()

    def blocks(self) -> tuple[set[int], set[int]]:
        gpu = own_gpu()
        reads, writes = (
            {
                number
                for t in some
                if (block := block_of(gpu, t)) is not None
                for number in block.numbers(values(t), cuts=True)
            }
            for some in self.tensors
        )
        return reads - writes, writes

    def on_host(self) -> None:
        reads, writes = self.blocks()
        if reads | writes:
            own_gpu().host_access(reads, writes, self.kernel)

    def wait(self, timeout: object = None) -> None:
        self.finish()
        self.finish = lambda: None
        if self.ended is None:
            self.on_host()
        else:
            HERE.stream.wait_event(self.ended)
            if self in self.group.held:
                self.group.held.remove(self)
        self.tensors = [], []

    def get_future(self) -> torch.futures.Future[None]:
        """Return a future whose callbacks run on another thread, as those of gloo."""
        future: torch.futures.Future[None] = torch.futures.Future()

        def finish() -> None:
            self.wait()
            future.set_result(None)

        Thread(target=finish, daemon=True).start()
        return future


@dataclass
class P2POp:
    op: Callable[..., Any]
    tensor: Tensor
    peer: int
    group: Group


class Calls:
    """The functions of `torch.distributed`, for all processes of ``network``."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.groups: defaultdict[int, Iterator[int]] = defaultdict(count)

    def init_process_group(self, *arguments: object, **options: object) -> None:
        """Do nothing: the default group is that of the network."""

    def destroy_process_group(self, group: object = None) -> None:
        """Do nothing."""

    def barrier(self, group: Group | None = None) -> None:
        if group is not None:
            group.gather(torch.zeros(1))()

    def new_group(self, ranks: Sequence[int], timeout: object = None, backend: str = "gloo") -> Any:
        number = next(self.groups[own_gpu().process])
        if own_gpu().process in ranks:
            return Group(self.network, number, ranks, backend)
        return dist.GroupMember.NON_GROUP_MEMBER

    def get_rank(self, group: object = None) -> int:
        return own_gpu().process

    def get_process_group_ranks(self, group: Group) -> list[int]:
        return list(group.members)

    def get_world_size(self, group: object = None) -> int:
        return self.network.processes

    def send(self, tensor: Tensor, dst: int, group: object = None, tag: int = 0) -> None:
        """Send a header, which is received from any source."""
        with self.network.changed:
            self.network.announced[dst, tag].append((self.get_rank(), clone(tensor)))
            self.network.changed.notify_all()

    def recv(self, tensor: Tensor, group: object = None, tag: int = 0) -> int:
        queue = self.network.announced[self.get_rank(), tag]
        self.network.wait_for(lambda: len(queue) or None)
        src, header = queue.popleft()
        tensor.copy_(header)
        return src

    def isend(self, tensor: Tensor, dst: int, group: Group, tag: int = 0) -> Work:
        self.network.send((self.get_rank(), dst, group.number, tag), tensor)
        return Work(group, lambda: None, [tensor], [], "send")

    def irecv(self, tensor: Tensor, src: int, group: Group, tag: int = 0) -> Work:
        return Work(group, self.receiving(tensor, src, group, tag), [], [tensor], "receive")

    def receiving(self, tensor: Tensor, src: int, group: Group, tag: int) -> Callable[[], None]:
        key = src, self.get_rank(), group.number, tag
        number, target = self.network.ticket(key), values(tensor)
        return lambda: copy_(target, self.network.receive(key, number))

    def batch_isend_irecv(self, operations: list[P2POp]) -> list[Work]:
        sends = [operation for operation in operations if operation.op == self.isend]
        receives = [operation for operation in operations if operation.op == self.irecv]
        if not operations[0].group.started:
            raise NotStarted("an exchange is the first call of its group")
        for send in sends:
            self.network.send((self.get_rank(), send.peer, send.group.number, 0), send.tensor)
        finish = [
            self.receiving(receive.tensor, receive.peer, receive.group, 0) for receive in receives
        ]

        def finish_all() -> None:
            for complete in finish:
                complete()

        tensors = [send.tensor for send in sends], [receive.tensor for receive in receives]
        return [Work(operations[0].group, finish_all, *tensors, "exchange")]

    def all_reduce(
        self,
        tensor: Tensor,
        op: object = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Work | None:
        wait, target = group.gather(tensor), values(tensor)
        reduce = torch.amin if op == dist.ReduceOp.MIN else torch.sum
        return self.begun(
            group,
            lambda: copy_(target, reduce(torch.stack(wait()), 0)),
            [tensor],
            [tensor],
            async_op,
            "all-reduce",
        )

    def all_gather(
        self, parts: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Work | None:
        wait, targets = group.gather(tensor), [values(part) for part in parts]

        def finish() -> None:
            for target, value in zip(targets, wait(), strict=True):
                copy_(target, value)

        return self.begun(group, finish, [tensor], parts, async_op, "all-gather")

    def all_gather_into_tensor(
        self, whole: Tensor, tensor: Tensor, group: Any = None, async_op: bool = False
    ) -> Work | None:
        wait, target = group.gather(tensor), values(whole)
        return self.begun(
            group,
            lambda: copy_(target, torch.cat(wait())),
            [tensor],
            [whole],
            async_op,
            "all-gather",
        )

    def reduce(
        self, tensor: Tensor, group: Any = None, group_dst: int = 0, async_op: bool = False
    ) -> Work | None:
        wait, target = group.gather(tensor), values(tensor)
        here = group.members[group_dst] == group.process

        def finish() -> None:
            total = torch.stack(wait()).sum(0)
            copy_(target, total if here else torch.full_like(total, torch.nan))

        return self.begun(group, finish, [tensor], [tensor], async_op, "reduce")

    def broadcast(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: Any = None,
        group_src: int = 0,
        async_op: bool = False,
    ) -> Work | None:
        wait, target = group.gather(tensor), values(tensor)
        return self.begun(
            group,
            lambda: copy_(target, wait()[group_src]),
            [tensor],
            [tensor],
            async_op,
            "broadcast",
        )

    def begun(
        self,
        group: Group,
        finish: Callable[[], None],
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        async_op: bool,
        kernel: str,
    ) -> Work | None:
        work = Work(group, finish, reads, writes, kernel)
        if async_op:
            return work
        work.wait()
        return None


def copy_(target: Tensor, value: Tensor) -> None:
    """Copy values without an access that is judged."""
    with torch._C._DisableTorchDispatch():
        target.copy_(value)


def clone(tensor: Tensor) -> Tensor:
    """Copy the values of a tensor without an access that is judged."""
    with torch._C._DisableTorchDispatch():
        return values(tensor).clone()


@contextmanager
def pretend_distributed(network: Network, store: dist.Store) -> Iterator[None]:
    """Let `torch.distributed` work between the processes of ``network``, which share ``store``."""
    calls = Calls(network)
    functions = {name: getattr(calls, name) for name in dir(Calls) if not name.startswith("_")}
    functions = {name: value for name, value in functions.items() if hasattr(dist, name)}
    gather, who = calls.all_gather_into_tensor, calls.get_rank
    with (
        mock.patch.multiple(dist, P2POp=P2POp, **functions),
        mock.patch.object(torch_collectives, "all_gather_single", gather),
        mock.patch.object(torch_world, "meet", lambda _: (store, who(), network.processes)),
    ):
        yield
