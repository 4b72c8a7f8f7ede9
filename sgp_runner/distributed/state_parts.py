"""State in parts (``network.shard=state``): each device of a node holds its part of all vectors.

Before a gradient the devices gather the parameters; after the backward pass each receives the mean
gradient of its part. Optimizer, algorithm and messages see only the part, and messages go to the
same device of the other node. An operation that reduces a vector adds up the results of all
devices, so each of them must make the same calls in the same order, as in `ShardedTransport`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from sgp_runner.core.optim import Shapes
from sgp_runner.core.parts import PartShapes, cut
from sgp_runner.core.problem import Problem
from sgp_runner.distributed.torch_collectives import NODE, all_gather_single
from sgp_runner.distributed.world import World
from sgp_runner.utils.waits import waiting_for

# The name of `reduce_scatter_tensor` since PyTorch deprecated that one.
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class StateParts:
    """The parts of the devices of one node.

    In the collectives of a node all parts have the length of the longest; zeros fill the rest.

    where: slice of the parameters [D] that is this device's part
    shapes: shapes of the tensors in this part
    """

    def __init__(self, shapes: Shapes, world: World) -> None:
        assert world.cut is not None and world.node is not None
        self.group: dist.ProcessGroup = world.node
        parts = cut(shapes, world.layout.devices, world.cut)
        self.lengths = [part.stop - part.start for part in parts]
        self.longest = max(self.lengths)
        self.where = parts[world.layout.device]
        self.shapes = PartShapes(shapes, self.where, self)
        # Whether the gathered parts are the vector [D], followed by zeros.
        self.is_dense = all(
            length == self.longest or not any(self.lengths[device + 1 :])
            for device, length in enumerate(self.lengths)
        )
        ends = [*accumulate(self.lengths)]
        self.numel = ends[-1]
        self.zeros: dict[int, int] = {}  # number of zeros that follow this many elements
        for end, length in zip(ends, self.lengths, strict=True):
            self.zeros[end] = self.zeros.get(end, 0) + self.longest - length
        # Memory of the gathered parameters of gradients: one row per part, and the vector [D].
        self.rows = self.whole = torch.empty(0)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of ``x`` [] over the devices of the node, in the memory of ``x``."""
        with waiting_for(NODE):
            dist.all_reduce(x, group=self.group)
        return x

    def gathered(self, part: Tensor) -> Tensor:
        """Return the vector [D] of which each device has a ``part``, in new memory."""
        rows = self.new_rows(part)
        self.gather(part, rows)
        return rows.view(-1)[: self.numel] if self.is_dense else torch.cat(self.filled_of(rows))

    def gathered_for_gradient(self, part: Tensor) -> Tensor:
        """Return `gathered` in the same memory each time, to which the module stays bound."""
        if not self.rows.numel():
            self.rows = self.new_rows(part)
            self.whole = (
                self.rows.view(-1)[: self.numel] if self.is_dense else part.new_empty(self.numel)
            )
        self.gather(part, self.rows)
        if not self.is_dense:
            torch.cat(self.filled_of(self.rows), out=self.whole)
        return self.whole

    def new_rows(self, like: Tensor) -> Tensor:
        return like.new_empty(len(self.lengths), self.longest)

    def filled_of(self, rows: Tensor) -> list[Tensor]:
        """Return the part in each row, without the zeros that fill it."""
        return [row[:length] for row, length in zip(rows, self.lengths, strict=True)]

    def gather(self, part: Tensor, rows: Tensor) -> None:
        padded = pad(part, (0, self.longest - part.numel()))
        with waiting_for(NODE):
            all_gather_single(rows.view(-1), padded, group=self.group)

    def mean(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return this device's part of the mean gradient over the devices of the node.

        gradients: of the parameter tensors, in their order
        """
        rows, end = [], 0
        for gradient in gradients:
            end += gradient.numel()
            rows.append(gradient)
            if zeros := self.zeros.get(end):
                rows.append(gradient.new_zeros(zeros))
        mean = gradients[0].new_empty(self.longest)
        with waiting_for(NODE):
            reduce_scatter_single(mean, torch.cat(rows), group=self.group)
        return mean[: self.where.stop - self.where.start].div_(len(self.lengths))


def parts_of(problem: Problem, world: World) -> StateParts | None:
    """Return the parts of this node's devices; None if each device has whole vectors."""
    return None if world.cut is None else StateParts(problem.flat.shapes, world)
