"""`Transport` of a node whose devices all run the algorithm and move a part of every message.

A message is sent in parts, from every device of a node to the same device of the other node, so
that all network cards are used; at the receiving end, the devices of the node assemble it. All
devices of a node have the same parameters and take the same steps, because they see the same data:
gradients and all-reduces are averages with the same result everywhere, messages are assembled from
the same parts, and the devices agree on whether a polled message has arrived. They therefore make
the same calls in the same order; by induction on the calls, every agreement finds all devices at
the same call, and it cannot block, since it asks for arrivals and never waits for a message.

That order must not depend on when messages arrive, so the scheduler wakes coroutines in the order
of their requests (``in_order``), and a message is assembled when it is awaited.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from sgp_runner.core.comm import Transport
from sgp_runner.core.scheduler import Future
from sgp_runner.distributed.torch_collectives import NODE, MessageParts
from sgp_runner.utils.waits import waiting_for


class ShardedTransport(Transport):
    """Transport of one device, which moves its part of each message over ``base``.

    shards: parts of the devices; None: they hold parts of all vectors (`state_parts`) and each
        sends complete messages for its part
    node_cpu_group: process group of the node, for agreement
    """

    def __init__(
        self, base: Transport, shards: MessageParts | None, node_cpu_group: dist.ProcessGroup
    ) -> None:
        self.base, self.shards, self.node_cpu_group = base, shards, node_cpu_group

    def empty_like(self, tensor: Tensor, peers: Sequence[int]) -> Tensor:
        return self.base.empty_like(tensor, peers)

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        """Send this device's part; return the bytes of the node's whole message."""
        return self.base.send(dst, tag, message)

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.base.all_reduce(number, tensor)

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.base.all_gather(number, tensor)

    def before_receiving(self, src: int | None) -> None:
        self.base.before_receiving(src)

    def may_poll(self, arrived: bool) -> bool:
        """Return whether the parts have arrived at all devices of the node."""
        if not self.base.may_poll(True):
            return False
        word = torch.tensor([arrived], dtype=torch.uint8)
        with waiting_for(NODE):
            dist.all_reduce(word, dist.ReduceOp.MIN, group=self.node_cpu_group)
        return bool(word)

    def check_any_source(self) -> None:
        raise RuntimeError(
            "devices that share their messages cannot agree on which one came first: "
            "use network.gossip=leader"
        )

    def convert(self, message: Tensor) -> Tensor:
        """Return ``message`` in one tensor, assembled from the parts of all devices."""
        message, shards = self.base.convert(message), self.shards
        if shards is None:
            return message
        return shards.whole(shards.piece(message), message.numel())

    def flush(self) -> None:
        self.base.flush()

    def quiesce(self) -> None:
        self.base.quiesce()

    def end_of_step(self) -> None:
        self.base.end_of_step()

    def close(self) -> None:
        self.base.close()
