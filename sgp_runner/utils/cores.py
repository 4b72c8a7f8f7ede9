"""The cores of this machine that a process may use."""

from __future__ import annotations

import os

KEY = "OMP_NUM_THREADS"


def present_cores() -> int:
    """Return the cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def asked_cores() -> int | None:
    """Return the cores requested by OMP_NUM_THREADS; None if the variable is not set."""
    said = os.environ.get(KEY, "").partition(",")[0]
    return int(said) if said.isdecimal() and int(said) else None
