"""Bugs of the transport that gloo forgives and NCCL does not: context managers, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from unittest.mock import patch

import torch
import torch.distributed as dist
from gpu_rig import noted_group

from sgp_runner.distributed import torch_world
from sgp_runner.distributed.nccl_transport import MAX_EXCHANGES, NcclTransport, TransferBatch
from sgp_runner.distributed.torch_world import TorchWorld

LATE = (1, 2)  # processes: the second device of the first node and the first one of the second


def in_pieces(operations: list[dist.P2POp]) -> list[dist.Work]:
    """Start an exchange as one call per message."""
    return [work for operation in operations for work in noted_group.batch_isend_irecv([operation])]


class LateTransport(NcclTransport):
    """Transport that starts exchanges on some devices after the next gradient, on others before."""

    def flush(self) -> None:
        if self.layout.process not in LATE:
            super().flush()
        elif self.open is not None:
            self.held.append(self.open)
            self.open = None

    def before_receiving(self, src: int | None) -> None:
        self.flush()
        while self.held and self.held[0].number // MAX_EXCHANGES < self.steps:
            self.open = self.held.pop(0)
            super().flush()
        self.clock.catch_up()

    @property
    def held(self) -> list[TransferBatch]:
        held: list[TransferBatch] = self.__dict__.setdefault("exchanges that are held", [])
        return held


def shorter_transfer(
    self: NcclTransport, verb: Callable[..., object], rank: int, message: torch.Tensor
) -> dist.P2POp:
    """Send one element less than the peer expects, which reads a zero."""
    part = self.part.of(message.numel())
    if verb is dist.irecv:
        message.zero_()
    if verb is dist.isend and self.layout.process == 0:
        part = slice(part.start, part.stop - 1)
    return dist.P2POp(verb, message[part], self.layout.process_of(rank), self.group)


def without_first_call(self: TorchWorld, processes: Sequence[int]) -> dist.ProcessGroup:
    """Make a group that connects in its first exchange."""
    group = dist.new_group([*processes], backend=self.backend, timeout=torch_world.FOREVER)
    self.created.append(group)
    return group


BUGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "exchange in pieces": lambda: patch.object(dist, "batch_isend_irecv", in_pieces),
    "late start": lambda: patch.object(torch_world, "NcclTransport", LateTransport),
    "short part": lambda: patch.object(NcclTransport, "transfer", shorter_transfer),
    "no first call": lambda: patch.object(TorchWorld, "group", without_first_call),
    "any element": lambda: patch.object(torch_world, "PART_MULTIPLE", 1),
}
