"""The number of cores that a process may use."""

from __future__ import annotations

import os

KEY = "OMP_NUM_THREADS"


def present_cores() -> int:
    """Return the number of cores on which this process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def asked_cores() -> int | None:
    """Return the number of cores in OMP_NUM_THREADS; None if the variable has no number."""
    said = os.environ.get(KEY, "").partition(",")[0]
    return int(said) if said.isdecimal() and int(said) else None
