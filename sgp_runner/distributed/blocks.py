"""Block-wise transfer of parameters and gradients, overlapped with a model's computation.

The devices of a node with divided state (`StateParts`) need all parameters for a gradient. Each
block comes from the device that holds it, and a module waits only for the blocks of its own
parameters; in the backward pass, a block of the gradient is sent as soon as it is complete.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sgp_runner.core.problem import Problem
from sgp_runner.core.wait_meter import WaitMeter
from sgp_runner.distributed.torch_collectives import NODE
from sgp_runner.utils.spans import span
from sgp_runner.utils.waits import waiting_for

ELEMENTS = 2**22  # of a block


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive parameters of one device.

    where: slice of the vector [D]
    tensors: indices of the tensors that it holds, completely or in part
    owner: the device that holds the block
    """

    where: slice
    tensors: range
    owner: int


def blocks_of(layers: Sequence[int], parts: Sequence[slice], most: int = ELEMENTS) -> list[Block]:
    """Cut the part of each device into blocks.

    layers: number of elements of each tensor
    parts: slices of the vector [D]; some may be empty
    most: maximum elements of a block, a multiple of `PART_MULTIPLE`, so that blocks align with
        parts
    """
    ends = [*accumulate(layers)]
    return [
        Block(
            slice(begin, end),
            range(bisect_right(ends, begin), bisect_left(ends, end) + 1),
            owner,
        )
        for owner, part in enumerate(parts)
        for begin in range(part.start, part.stop, most)
        for end in [min(begin + most, part.stop)]
    ]


class InBlocks(nn.Module):
    """A model that receives its parameters, and sends its gradient, in blocks.

    The first forward pass waits for all parameters and shows which modules are called. Parameters
    of other modules are used by an enclosing module: later passes wait for these before they begin,
    and for the rest where they are used. A compiled model always waits for all.

    reduce: starts the reduction of a gradient block; all devices call it in the same order
    meter: measures the device's waiting time
    """

    def __init__(
        self,
        problem: Problem,
        blocks: Sequence[Block],
        reduce: Callable[[Tensor, Block], dist.Work],
        meter: WaitMeter,
    ) -> None:
        super().__init__()
        self.problem, self.blocks, self.reduce, self.meter = problem, blocks, reduce, meter
        flat, compiles = problem.flat, problem.compute.compile
        self.model = torch.compile(flat.module) if compiles else flat.module
        self.arriving: dict[Block, dist.Work] = {}
        self.of_tensor: list[list[Block]] = [
            [block for block in blocks if number in block.tensors]
            for number in range(len(flat.layers))
        ]
        self.at_first = set(range(len(flat.layers)))
        self.called: set[int] = set()
        self.gradient = torch.empty(0)
        self.unfinished: set[int] = set()  # tensors whose gradient is not complete
        self.ahead: list[Block] = []  # blocks that have not left, the next one last
        self.leaving: list[dist.Work] = []
        self.adds_up = False  # whether more micro-batches follow

    def wait_in_modules(self) -> None:
        """Make each module wait for the arriving blocks of its own parameters."""
        flat = self.problem.flat
        numbers = {p: number for number, p in enumerate(flat.parameters)}
        for module in () if self.problem.compute.compile else flat.module.modules():
            if tensors := [numbers[p] for p in module._parameters.values() if p is not None]:
                module.register_forward_pre_hook(partial(self.before, tensors))

    def forward(self, *inputs: Tensor) -> Tensor:
        self.arrive(self.at_first)
        self.called.clear()
        output: Tensor = self.model(*inputs)
        self.at_first -= self.called
        return output

    def before(self, tensors: list[int], module: nn.Module, inputs: object) -> None:
        self.called.update(tensors)
        self.arrive(tensors)

    def arrive(self, tensors: Iterable[int]) -> None:
        """Wait for the blocks of these tensors."""
        for number in tensors if self.arriving else ():
            for block in self.of_tensor[number]:
                if (work := self.arriving.pop(block, None)) is not None:
                    self.wait(work)

    def wait(self, work: dist.Work) -> None:
        device = torch.device(self.problem.compute.device)
        with self.meter.waiting(device), waiting_for(NODE):
            work.wait()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Send no block in this pass, because more micro-batches follow."""
        self.adds_up = True
        try:
            yield
        finally:
            self.adds_up = False

    def reduced(
        self, at: Tensor, buffers: list[Tensor], rank: int, number: int, scale: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return `Problem.gradient` with its blocks reduced."""
        flat, gradient = self.problem.flat, at.new_empty(at.shape)
        self.gradient, self.ahead = gradient, [*self.blocks]
        self.unfinished = set(range(len(flat.layers)))
        with span(f"gradient {number}"), flat.gathering(gradient, self.complete):
            loss = self.problem.backward(at, buffers, rank, number, self, scale)
        self.unfinished.clear()
        self.leave()
        for work in (*self.arriving.values(), *self.leaving):
            self.wait(work)
        self.arriving.clear()
        self.leaving.clear()
        self.gradient = torch.empty(0)  # the memory is the caller's
        return gradient, loss

    def complete(self, tensor: int) -> None:
        if not self.adds_up:
            self.unfinished.discard(tensor)
            self.leave()

    def leave(self) -> None:
        """Send complete blocks, from the last to the first."""
        while self.ahead and self.unfinished.isdisjoint(self.ahead[-1].tensors):
            block = self.ahead.pop()
            self.leaving.append(self.reduce(self.gradient[block.where], block))
