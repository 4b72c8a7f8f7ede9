"""Progress in the output of a notebook's cell."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from threading import Event, Thread

from rich.console import Console, RenderableType

KERNEL = "ipykernel.iostream"  # of the stdout of a notebook's kernel
REDRAW_SECONDS = 0.5
WIDTH = 100


def in_notebook() -> bool:
    """Whether stdout is the output of a cell."""
    return type(sys.stdout).__module__ == KERNEL


class NotebookLive:
    """A display that replaces itself, used as rich's `Live` is, which needs ipywidgets here."""

    def __init__(self, get_renderable: Callable[[], RenderableType]) -> None:
        self._render = get_renderable
        self._ended = Event()
        self._thread = Thread(target=self._redraw, daemon=True)

    def start(self, refresh: bool = True) -> None:
        from IPython.display import display

        self._handle = display(self._text(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._handle.update(self._text(), raw=True)

    def _redraw(self) -> None:
        while not self._ended.wait(REDRAW_SECONDS):
            self._handle.update(self._text(), raw=True)

    def _text(self) -> dict[str, str]:
        out = io.StringIO()
        Console(file=out, width=WIDTH, force_jupyter=False).print(self._render())
        return {"text/plain": out.getvalue()}
