from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from sgp_runner.models.in_memory_model import described
from sgp_runner.utils.fingerprint import code_hash, tensor_hash

BASE = """
LIMIT = 3
def helper(x): return x + LIMIT
def other(x): return x
def given(x, k=1):
    inner = lambda: helper(x)
    return inner() if x in {1, 2} else k
"""


def given(source: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec", dont_inherit=True), names)
    function: Callable[..., Any] = names["given"]
    return function


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("LIMIT = 3", "LIMIT = 3  # as before", True),
        ("def other(x): return x", "def other(x): return 2 * x", True),
        ("LIMIT = 3", "LIMIT = 4", False),
        ("return x + LIMIT", "return x - LIMIT", False),
        ("k=1", "k=2", False),
        ("{1, 2}", "{1, 3}", False),
    ],
)
def test_the_code_and_what_it_uses_count(old: str, new: str, same: bool) -> None:
    changed = BASE.replace(old, new)
    assert changed != BASE
    assert (code_hash(given(changed)) == code_hash(given(BASE))) is same


def test_values_that_a_function_encloses_count() -> None:
    def scaled(factor: float) -> Callable[[float], float]:
        return lambda x: factor * x

    assert code_hash(scaled(2.0)) == code_hash(scaled(2.0)) != code_hash(scaled(3.0))


def test_all_kinds_of_members_of_a_class_count() -> None:
    def made(a: int = 1, b: int = 1, c: int = 1, d: int = 1) -> type:
        class Made:
            table: ClassVar = {"a": d}

            @property
            def width(self) -> int:
                return a

            @staticmethod
            def depth() -> int:
                return b

            @classmethod
            def height(cls) -> int:
                return c

        return Made

    classes = (made(), made(), made(a=2), made(b=2), made(c=2), made(d=2))
    hashes = [code_hash(cls) for cls in classes]
    assert hashes[0] == hashes[1] and len({*hashes}) == 5


def test_tensors_count_with_names_types_and_shapes() -> None:
    ones = torch.ones(4)
    hashes = {
        tensor_hash([(name, tensor)])
        for name, tensor in (
            ("a", ones),
            ("b", ones),
            ("a", ones.double()),
            ("a", ones.reshape(2, 2)),
            ("a", 2 * ones),
        )
    }
    assert len(hashes) == 5
    assert tensor_hash([("a", torch.ones(8)[::2])]) == tensor_hash([("a", ones)])


def test_the_structure_of_a_module_counts() -> None:
    def made(activation: nn.Module, p: float = 0.5) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), activation, nn.Dropout(p))

    one, other, third = (
        described(module) for module in (made(nn.ReLU()), made(nn.Tanh()), made(nn.ReLU(), 0.1))
    )
    assert one == described(made(nn.ReLU()))
    assert one.sha256 == other.sha256 == third.sha256
    assert len({one.source, other.source, third.source}) == 3
