"""Deprecated names in the interface of plug-ins."""

from __future__ import annotations

import functools
from typing import Any

from sgp_runner.utils.messages import logger


@functools.cache
def warn_of_new_name(old: str, new: str) -> None:
    """Warn once in a process that ``old`` has a new name."""
    logger.warning(f"{old} is now called {new}.")


def renamed(old: str, new: str) -> Any:
    """Return a property that gives workers the deprecated name ``old``; rank 0 warns of its use."""

    def get(worker: Any) -> Any:
        if worker.rank == 0:
            warn_of_new_name(f"worker.{old}", f"worker.{new}")
        return getattr(worker, new)

    def put(worker: Any, value: Any) -> None:
        setattr(worker, new, value)

    return property(get, put)
