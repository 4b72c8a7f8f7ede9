"""Where parameters lie in a model, and how an evaluation computes on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.tiny import tiny_problem
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sgp_runner.core.flat import FlatModule
from sgp_runner.core.problem import Compute
from sgp_runner.data.tasks import Classification


class Operations(TorchDispatchMode):
    """Notes the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_vector_that_is_bound_again_costs_no_operation() -> None:
    flat = FlatModule(nn.Linear(2, 1))
    x, y = torch.arange(3.0), torch.arange(3.0) + 10
    for vector, weight, operations in (
        (x, [[0, 1]], ["aten.split_with_sizes.default", "aten.view.default", "aten.view.default"]),
        (x, [[0, 1]], []),
        (y, [[10, 11]], ["aten.split_with_sizes.default", *["aten.view.default"] * 2]),
        (x, [[0, 1]], ["aten.split_with_sizes.default", *["aten.view.default"] * 2]),
    ):
        with Operations() as noted:
            flat.bind(vector, [])
        assert [name for name in noted.names if "detach" not in name] == operations
        assert flat.module.weight.tolist() == weight
    x += 1
    assert flat.module.weight.tolist() == [[1, 2]]


class Interrupted(Exception):
    """An evaluation that fails."""


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_an_evaluation_on_a_gpu_is_in_full_precision(device: str) -> None:
    """Convolutions of gradients use TF32, PyTorch's default."""
    operations = torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul
    before = [operation.fp32_precision for operation in operations]
    assert before == ["tf32", "tf32", "none"]
    seen: list[Any] = []
    older: list[bool] = []

    def sums_of(params: Tensor, buffers: list[Tensor]) -> list[Sequence[float]]:
        seen.append([operation.fp32_precision for operation in operations])
        older.append(torch.backends.cudnn.allow_tf32)  # torch.compile reads it
        raise Interrupted

    problem = tiny_problem()
    problem = replace(
        problem,
        compute=Compute(device),
        sums_of=sums_of,
        dataset=replace(problem.dataset, task=Classification()),
    )
    with pytest.raises(Interrupted):
        problem.evaluate(problem.start(), [])
    assert seen == [before if device == "cpu" else ["ieee"] * 3]
    assert [operation.fp32_precision for operation in operations] == before
    assert [*older, torch.backends.cudnn.allow_tf32] == [device == "cpu", True]
