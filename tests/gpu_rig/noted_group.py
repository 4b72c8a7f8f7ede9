"""A process group over gloo that notes the calls that NCCL would get, in the order of their launch.

It is the backend ``noted`` of ``torch.distributed``, and notes what data parallelism reduces too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from gpu_rig.nccl_order import ALIGNMENT, Call, Tensor
from torch.distributed.distributed_c10d import _get_process_group_name

calls: list[Call] = []  # of this process
batches: list[list[Tensor]] = []  # at most one, which takes the next sends and receives


class NotedGroup(dist.ProcessGroup):
    """Process group whose calls are noted, and done by gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)

    def getBackendName(self) -> str:
        return "noted"

    def note(self, verb: str, tensors: Sequence[torch.Tensor], peer: int | None = None) -> None:
        communicator, members = identity(self)
        noted = [
            Tensor(
                verb,
                tensor.nbytes,
                None if peer is None else members[peer],
                tensor.is_contiguous(),
                tensor.data_ptr() % ALIGNMENT == 0,
            )
            for tensor in tensors
        ]
        if batches:
            batches[0].extend(noted)
        else:
            calls.append(Call(communicator, members, noted))

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> dist.Work:
        self.note("all_reduce", tensors)
        return self.gloo.allreduce(tensors, options or dist.AllreduceOptions())

    def broadcast(self, tensors: list[torch.Tensor], options: Any = None) -> dist.Work:
        self.note("broadcast", tensors)
        return self.gloo.broadcast(tensors, options or dist.BroadcastOptions())

    def allgather(
        self, parts: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any = None
    ) -> dist.Work:
        self.note("all_gather", tensors)
        return self.gloo.allgather(parts, tensors, options or dist.AllgatherOptions())

    def all_gather_single(
        self, whole: torch.Tensor, part: torch.Tensor, options: Any = None
    ) -> dist.Work:
        return self.allgather([list(whole.chunk(self.size()))], [part], options)

    _allgather_base = all_gather_single  # its name until torch 2.12

    def reduce(self, tensors: list[torch.Tensor], options: Any = None) -> dist.Work:
        self.note("reduce", tensors)
        return self.gloo.reduce(tensors, options or dist.ReduceOptions())

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> dist.Work:
        self.note("send", tensors, dst)
        return self.gloo.send(tensors, dst, tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> dist.Work:
        self.note("recv", tensors, src)
        return self.gloo.recv(tensors, src, tag)


def identity(group: dist.ProcessGroup) -> tuple[str, list[int]]:
    """Return the name of a communicator, the same on all members, and its members."""
    return _get_process_group_name(group), dist.get_process_group_ranks(group)


def batch_isend_irecv(operations: list[dist.P2POp]) -> list[dist.Work]:
    """Note a batch as one call: over NCCL it is one, over gloo it is not."""
    group = operations[0].group
    assert group is not None
    batches.append([])
    calls.append(Call(*identity(group), batches[0]))
    try:
        return real_batch(operations)
    finally:
        batches.clear()


real_batch = dist.batch_isend_irecv
dist.batch_isend_irecv = batch_isend_irecv
dist.Backend.register_backend("noted", NotedGroup, devices=["cpu"])
