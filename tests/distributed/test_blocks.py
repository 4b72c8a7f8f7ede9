"""Parameters arrive, and a gradient leaves, in blocks."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sgp_runner.core.flat import FlatModule
from sgp_runner.core.problem import Compute
from sgp_runner.core.wait_meter import WaitMeter
from sgp_runner.distributed.blocks import Block, InBlocks, blocks_of


def described(blocks: list[Block]) -> list[tuple[int, int, list[int], int]]:
    return [(b.where.start, b.where.stop, [*b.tensors], b.owner) for b in blocks]


def test_blocks_have_one_owner_and_know_their_tensors() -> None:
    assert described(blocks_of([3, 2, 4], [slice(0, 4), slice(4, 9), slice(9, 9)], most=4)) == [
        (0, 4, [0, 1], 0),
        (4, 8, [1, 2], 1),
        (8, 9, [2], 1),
    ]
    assert described(blocks_of([3, 2, 4], [slice(0, 9)], most=5)) == [
        (0, 5, [0, 1], 0),
        (5, 9, [2], 0),
    ]


class Noted(nn.Module):
    """A layer that notes when it computes; the second one lends its weight to the model."""

    def __init__(self, events: list[str], number: int) -> None:
        super().__init__()
        self.events, self.number = events, number
        self.weight = nn.Parameter(torch.tensor([number + 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        self.events.append(f"layer {self.number}")
        return x * self.weight


class Lender(nn.Module):
    """Layers 0, 2 and 3, and the weight of layer 1, which is not called."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Noted(events, number) for number in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        first, lent, *others = self.layers
        x = first(x) * lent.weight
        for layer in others:
            x = layer(x)
        return x


class Lending:
    """The problem of the product of all weights, in ``micro_batches`` equal ones."""

    compute = Compute()

    def __init__(self, events: list[str]) -> None:
        self.flat, self.micro_batches = FlatModule(Lender(events)), 1

    def backward(self, at: Tensor, *where: Any) -> Tensor:
        model = where[3]
        for _ in range(self.micro_batches - 1):
            with model.no_sync():
                model(torch.tensor(1.0)).sum().backward()
        loss: Tensor = model(torch.tensor(1.0)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


Fixture = tuple[InBlocks, list[str]]


@pytest.fixture
def model() -> Fixture:
    events: list[str] = []
    blocks = blocks_of([1] * 4, [slice(0, 4)], most=1)

    def reduce(gradient: Tensor, block: Block) -> Any:
        events.append(f"{block.where.start} leaves with {gradient.item():g}")
        return SimpleNamespace(wait=partial(events.append, f"{block.where.start} is reduced"))

    problem: Any = Lending(events)
    in_blocks = InBlocks(problem, blocks, reduce, WaitMeter())
    in_blocks.wait_in_modules()
    return in_blocks, events


def step(model: InBlocks, events: list[str], micro_batches: int = 1) -> list[str]:
    """Return the events of a gradient."""
    events.clear()
    model.arriving = {
        block: SimpleNamespace(wait=partial(events.append, f"{block.where.start} is here"))
        for block in model.blocks
    }
    model.problem.micro_batches = micro_batches  # type: ignore[attr-defined]
    gradient, loss = model.reduced(torch.zeros(4), [], 0, 0, None)
    assert loss == 24  # the product of all weights
    assert gradient.tolist() == [micro_batches * 24 / (number + 1) for number in range(4)]
    return [*events]


LEAVING = ["3 leaves with 6", "2 leaves with 8", "1 leaves with 12", "0 leaves with 24"]
REDUCED = [f"{number} is reduced" for number in (3, 2, 1, 0)]


def test_a_layer_waits_for_its_own_block(model: Fixture) -> None:
    """The first pass shows that layer 1 is not called, so that its weight is needed at first."""
    here = [f"{number} is here" for number in range(4)]
    assert step(*model) == [*here, "layer 0", "layer 2", "layer 3", *LEAVING, *REDUCED]
    assert step(*model) == [
        *("1 is here", "0 is here", "layer 0"),
        *("2 is here", "layer 2", "3 is here", "layer 3"),
        *LEAVING,
        *REDUCED,
    ]


def test_blocks_leave_with_the_sum_of_micro_batches(model: Fixture) -> None:
    assert [event for event in step(*model, micro_batches=2) if "leaves" in event] == [
        "3 leaves with 12",
        "2 leaves with 16",
        "1 leaves with 24",
        "0 leaves with 48",
    ]


def test_a_tensor_without_gradient_leaves_as_zero(
    model: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, events = model
    weight = network.problem.flat.parameters[2]

    def backward(*where: object) -> Tensor:
        (weight * 3).sum().backward()  # type: ignore[no-untyped-call]
        return weight.detach()

    monkeypatch.setattr(network.problem, "backward", backward)
    gradient, _ = network.reduced(torch.zeros(4), [], 0, 0, None)
    assert gradient.tolist() == [0, 0, 3, 0]
    assert events[:4] == [f"{i} leaves with {g}" for i, g in ((3, 0), (2, 3), (1, 0), (0, 0))]
