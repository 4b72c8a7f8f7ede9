"""Sharded state (``network.shard=state``): each device of a node holds its part of all vectors.

For a gradient, the devices exchange their parameters, and each receives the mean gradient of its
part (`InBlocks`). Optimizer, algorithm and messages see only the part, and messages go to the same
device of the other node. An operation that reduces a vector sums the results of all devices, so all
must make the same calls in the same order, as in `ShardedTransport`.
"""

from __future__ import annotations

from math import prod

import torch
import torch.distributed as dist
from torch import Tensor

from sgp_runner.core.optim import Shapes
from sgp_runner.core.parts import PartShapes, cut
from sgp_runner.distributed.blocks import Block, blocks_of
from sgp_runner.distributed.torch_collectives import NODE
from sgp_runner.distributed.world import World
from sgp_runner.utils.waits import waiting_for


class StateParts:
    """The parts of the devices of one node.

    where: slice of the parameters [D] that is this device's part
    shapes: shapes of the tensors in this part
    blocks: the blocks of a vector [D] that the devices exchange
    """

    def __init__(self, shapes: Shapes, world: World) -> None:
        assert world.cut is not None and world.node is not None
        self.group: dist.ProcessGroup = world.node
        self.devices = world.layout.devices
        parts = cut(shapes, self.devices, world.cut)
        self.where = parts[world.layout.device]
        self.shapes = PartShapes(shapes, self.where, self)
        self.blocks = blocks_of([*map(prod, shapes.values())], parts)
        self.numel = max(part.stop for part in parts)
        # The parameters of gradients, in the same memory each time: the module stays bound to it.
        self.whole = torch.empty(0)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of ``x`` [] over the devices of the node, computed in place."""
        with waiting_for(NODE):
            dist.all_reduce(x, group=self.group)
        return x

    def gathered(self, part: Tensor) -> Tensor:
        """Return the vector [D] assembled from the ``part`` of each device, in new memory."""
        whole = part.new_empty(self.numel)
        with waiting_for(NODE):
            for work in self.begin(part, whole).values():
                work.wait()
        return whole

    def begin(self, part: Tensor, whole: Tensor) -> dict[Block, dist.Work]:
        """Start gathering a vector; return the work handles that finish when each block arrives."""
        whole[self.where] = part
        return {
            block: dist.broadcast(
                whole[block.where], group=self.group, group_src=block.owner, async_op=True
            )
            for block in self.blocks
        }

    def reduce(self, values: Tensor, block: Block) -> dist.Work:
        """Start reducing a block of a gradient to the device that holds this part."""
        work: dist.Work = dist.reduce(
            values, group=self.group, group_dst=block.owner, async_op=True
        )
        return work
