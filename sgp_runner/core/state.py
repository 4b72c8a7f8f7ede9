"""State as plain data: tensors, numbers, texts, lists, tuples and mappings, which
`torch.load(weights_only=True)` accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sgp_runner.core.scheduler import Future

State = dict[str, Any]

NUMBER, VALUE = "number of a collective", "its value"


def packed(value: Any) -> Any:
    """Named state of a worker as plain data; a collective under way by its number, with its value
    if it has ended.
    """
    if isinstance(value, Future):
        return {NUMBER: value.what[1], VALUE: value.value if value.done else None}
    return mapped(packed, value)


def unpacked(value: Any) -> Any:
    """The reverse of `packed`."""
    if isinstance(value, dict) and value.keys() == {NUMBER, VALUE}:
        future: Future[Any] = Future(("collective", value[NUMBER], None))
        if value[VALUE] is not None:
            future.value, future.done = value[VALUE], True
        return future
    return mapped(unpacked, value)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A list, tuple or mapping of what ``function`` makes of its items; anything else as it is."""
    if isinstance(value, dict):
        return {name: function(each) for name, each in value.items()}
    return (
        type(value)(function(each) for each in value) if isinstance(value, list | tuple) else value
    )


def futures_in(value: Any) -> Iterator[Future[Any]]:
    """The collectives of named state, wherever they are."""
    if isinstance(value, Future):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from futures_in(each)
