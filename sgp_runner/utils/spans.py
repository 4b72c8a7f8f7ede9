"""Named spans of this process: intervals in which it waits or computes, shown in traces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Name = str | Callable[[], str]  # formatted only when needed
Marker = Callable[[str], AbstractContextManager[object]]

_markers: list[Marker] = []  # at most one


def mark_spans(marker: Marker | None) -> None:
    """Enter ``marker(name)`` in every `span` from now on; None stops this."""
    _markers[:] = [] if marker is None else [marker]


def span(name: Name) -> AbstractContextManager[object]:
    if not _markers:
        return nullcontext()
    return _markers[0](name if isinstance(name, str) else name())
