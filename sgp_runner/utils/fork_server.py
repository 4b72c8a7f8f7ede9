"""Start of the process from which `multiprocessing` forks others."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.context import ForkServerContext

from sgp_runner.utils.signals import blocked


def start_fork_server(modules: Sequence[str]) -> ForkServerContext:
    """Start the server, which imports ``modules`` once, and return its context.

    Signals are blocked in it, so that Ctrl-C at the terminal, or a launcher that sends signals to
    all processes, does not end it.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    # In separate blocks: the start of the tracker unblocks SIGINT and SIGTERM.
    with blocked():
        resource_tracker.ensure_running()
    with blocked():
        forkserver.ensure_running()
    return context
