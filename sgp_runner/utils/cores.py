"""The number of cores that a process may use."""

from __future__ import annotations

import os

from sgp_runner.utils.launchers import launched, local_ranks, whole

KEY = "OMP_NUM_THREADS"


def present_cores() -> int:
    """Return the number of cores on which this process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def share_of_cores() -> int:
    """Return this process's share of the cores, divided equally among the ranks on this machine.

    mpirun and srun may have bound the process to its cores; other launchers do not.
    """
    if (process := launched()) is None:
        return present_cores()
    ranks = local_ranks(process.size)
    bound = process.launcher in ("mpirun", "srun") and present_cores() < (os.cpu_count() or 1)
    return present_cores() if bound else max(1, present_cores() // ranks)


def asked_cores() -> int | None:
    """Return the number of cores in OMP_NUM_THREADS, which may be a list; None if it is not set.
    Raises LaunchError if the variable does not contain a number.
    """
    text = os.environ.get(KEY, "").partition(",")[0]
    return whole(KEY, {KEY: text}, least=1) if text else None
