"""State as plain data, which `torch.load(weights_only=True)` accepts.

Plain data are tensors, numbers, strings, lists, tuples and mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

from sgp_runner.core.scheduler import Future

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, Any]
T = TypeVar("T")


class NamedState(dict[str, Any]):
    """Named state of a worker: plain data and collectives that outlive its coroutines."""

    def __call__(self, name: str, init: Callable[[], T]) -> T:
        """Return the state ``name``, which ``init`` creates on first use."""
        if name not in self:
            self[name] = init()
        value: T = self[name]
        return value


NUMBER, VALUE = "number of a collective", "its value"


def packed(value: Any) -> Any:
    """Return named state of a worker as plain data.

    A collective becomes its number and, if it has completed, its value.
    """
    if isinstance(value, Future):
        return {NUMBER: value.what[1], VALUE: value.result() if value.done else None}
    return mapped(packed, value)


def unpacked(value: Any) -> Any:
    """Invert `packed`."""
    if isinstance(value, dict) and value.keys() == {NUMBER, VALUE}:
        future: Future[Any] = Future(("collective", value[NUMBER], None))
        if value[VALUE] is not None:
            future.value, future.done = value[VALUE], True
        return future
    return mapped(unpacked, value)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to the items of a list, tuple or mapping; return anything else."""
    if isinstance(value, dict):
        return {name: function(item) for name, item in value.items()}
    return (
        type(value)(function(item) for item in value) if isinstance(value, list | tuple) else value
    )


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in plain data."""
    from torch import Tensor

    if type(value) is Tensor:
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def with_memory(state: State, memory: Callable[[Tensor], Tensor]) -> State:
    """Return plain data with each tensor moved to ``memory``, called with its storage's bytes [n].

    Tensors that share memory still share it, so a file of the result has the same bytes.
    """
    import torch

    storages: dict[int, Any] = {}
    memo: dict[int, Any] = {}
    for tensor in tensors_in(state):
        storage: Any = tensor.untyped_storage()
        if storage._cdata not in storages:
            whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            storages[storage._cdata] = memory(whole).untyped_storage()
        where = tensor.storage_offset(), tensor.shape, tensor.stride()
        made = storages[storage._cdata]
        copy = torch.empty(0, dtype=tensor.dtype, device=made.device).set_(made, *where)
        memo[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
    return deepcopy(state, memo)


def outline(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and a description of each value in plain data.

    A tensor is described by type and shape, a float by its type, other values by their repr.
    """
    from torch import Tensor

    if isinstance(value, dict | list | tuple) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from outline(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, Tensor):
        yield key, f"{value.dtype} {[*value.shape]}"
    else:
        yield key, "a number" if isinstance(value, float) else repr(value)


def futures_in(value: Any) -> Iterator[Future[Any]]:
    """Yield all futures in a value of a worker's state."""
    if isinstance(value, Future):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from futures_in(item)
