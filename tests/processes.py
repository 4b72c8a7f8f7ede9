"""Starting commands that a test will interrupt."""

from __future__ import annotations

import signal


def hear_interrupts() -> None:
    """To run in a new process before its program: what runs in the background of a shell inherits that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
