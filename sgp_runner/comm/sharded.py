"""`Comm` of a node whose devices all run the algorithm: each carries its own part of every message.

A message of one node goes out in parts, from every device to the same device of the other node, so that all network cards work; at the
receiving end the devices of the node put it together. All of them have the same parameters and take the same steps, because everything
they see is the same: gradients and all-reduces are averages that end alike everywhere, messages are put together from the same parts, and
whether a polled message has arrived is agreed on. So they make the same calls in the same order; by induction on the calls, every
agreement finds all devices at the same call, and since it asks what has arrived and never waits for a message, it cannot block.

That order must not depend on when messages arrive. So `recv` waits on the spot: other activities of the worker do not run meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from sgp_runner.scheduler import RealClock, Wait, resolved
from sgp_runner.waits import waiting_for

if TYPE_CHECKING:
    from torch import Tensor

    from sgp_runner.comm.distributed import DistributedComm
    from sgp_runner.comm.paired import PairedComm
    from sgp_runner.place import Part

NODE = "waits for the devices of its node"


class ShardedComm:
    """The communication of one device, which carries ``part`` of every message. ``node``, ``hosts``: to move tensors, and to agree."""

    lockstep = True

    def __init__(
        self, base: DistributedComm | PairedComm, clock: RealClock, part: Part, node: dist.ProcessGroup, hosts: dist.ProcessGroup
    ) -> None:
        self.base, self.clock, self.part, self.node, self.hosts = base, clock, part, node, hosts
        self.mailbox = base.mailbox

    @property
    def num_bytes_sent(self) -> int:
        """By the whole node, to other nodes."""
        return self.base.num_bytes_sent

    @num_bytes_sent.setter
    def num_bytes_sent(self, count: int) -> None:
        self.base.num_bytes_sent = count

    @property
    def num_sent(self) -> int:
        return self.base.num_sent

    @property
    def num_delivered(self) -> int:
        return self.base.num_delivered

    def send(self, dst: int, message: Tensor, tag: int = 0) -> None:
        self.base.send(dst, message, tag)

    def recv(self, src: int, tag: int = 0) -> Wait[Tensor]:
        wait = self.base.recv(src, tag)
        self.clock.run_until(wait)
        return resolved(self.put_together(wait.value))

    def recv_any(self, tag: int = 0) -> Awaitable[tuple[int, Tensor]]:
        raise RuntimeError("devices that share their messages cannot agree on which one came first: use network.gossip=leader")

    def poll(self, src: int, tag: int = 0) -> Tensor | None:
        if self.base.lockstep:  # the base answers alike on all devices
            message = self.base.poll(src, tag)
            return None if message is None else self.put_together(message)
        arrived = torch.tensor([self.base.has(src, tag)], dtype=torch.uint8)
        with waiting_for(NODE):
            dist.all_reduce(arrived, dist.ReduceOp.MIN, group=self.hosts)
        if not arrived:
            return None
        message = self.base.poll(src, tag)
        assert message is not None
        return self.put_together(message)

    def all_reduce(self, tensor: Tensor) -> Awaitable[Tensor]:
        return self.base.all_reduce(tensor)

    def flush(self) -> None:
        self.base.flush()

    def rest(self) -> None:
        self.base.rest()

    def end_of_step(self) -> None:
        self.base.end_of_step()

    def close(self) -> list[tuple[int, int, int]]:
        return self.base.close()

    def put_together(self, message: Tensor) -> Tensor:
        """``message``, of which each device has its own part, in a tensor that has all parts."""
        total = message.numel()
        length = self.part.length(total)
        own = message[self.part.of(total)]
        own = pad(own, (0, length - own.numel()))
        whole = message.new_empty(length * self.part.count)
        with waiting_for(NODE):
            dist.all_gather_into_tensor(whole.view(torch.uint8), own.view(torch.uint8), group=self.node)
        return whole[:total]
