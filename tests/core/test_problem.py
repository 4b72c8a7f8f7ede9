"""Parameters lie in a vector, which a model is bound to."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sgp_runner.core.flat import FlatModule


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
        assert [each for each in noted.names if "detach" not in each] == operations
        assert flat.module.weight.tolist() == weight
    x += 1
    assert flat.module.weight.tolist() == [[1, 2]]
