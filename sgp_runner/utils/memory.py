"""Memory of this machine, and settings for processes that allocate 100 MB vectors in every step.

Call the functions that change settings before the first tensor is created.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def most_bytes() -> int:
    """Return the most memory that a process can allocate here, including swap space."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    swap = system_bytes("SwapTotal")
    if swap is None:  # on macOS, where its size is not fixed
        swap = shutil.disk_usage("/").free
    most = min([physical, *limits_of_groups()]) + swap
    return most if limit == resource.RLIM_INFINITY else min(most, limit)


def free_bytes() -> int:
    """Return the free memory without swap space; if it is unknown, return `most_bytes`."""
    free = system_bytes("MemAvailable")
    return most_bytes() if free is None else min([free, *limits_of_groups()])


def limits_of_groups(root: Path = Path("/")) -> Iterator[int]:
    """Yield the memory limits of this process's control groups, set by a container or Slurm."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        for part in (group, *group.parents):
            try:
                text = (folder / part / name).read_text(encoding="utf-8").strip()
            except OSError:
                continue
            if text.isdecimal():  # not "max"
                yield int(text)


def system_bytes(name: str) -> int | None:
    """Return an entry of ``/proc/meminfo``, 0 if it is missing; None on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def use_huge_pages() -> None:
    """Let PyTorch request huge pages; the system clears them in a tenth of the time."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next allocation, as PyTorch does on GPUs.

    Otherwise the library returns the memory of a long vector to the system, which then clears new
    pages for the next vector. Use it in processes that allocate the same sizes in every step. Only
    glibc supports it.
    """
    import ctypes

    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for setting, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (ARENA_MAX, 1)):
            library.mallopt(setting, value)


def flush_denormals() -> None:
    """Flush denormal numbers to zero, as GPUs do.

    Otherwise steps take many times longer once momentum decays to denormal numbers.
    """
    import torch

    torch.set_flush_denormal(True)  # inherited by threads started later


class Garbage:
    """Reference cycles left behind by the runs of this process."""

    uncollected = False  # whether a run has left some


@contextmanager
def collecting_garbage() -> Iterator[None]:
    """Free the reference cycles of a run when it ends; after an error, when the next run starts.

    A run has few objects, so Python's collector rarely runs, but they hold the run's memory,
    threads and connections. After an error the traceback still refers to them. Not needed in a
    process that ends with the run.
    """
    if Garbage.uncollected:
        gc.collect()
    Garbage.uncollected = True
    yield
    gc.collect()
    Garbage.uncollected = False


@contextmanager
def few_collections(none: bool) -> Iterator[None]:
    """Exclude existing objects from garbage collection; if ``none``, disable it entirely.

    Otherwise Python scans thousands of workers again and again.
    """
    before = gc.isenabled()
    gc.freeze()
    if none:
        gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if before:
            gc.enable()
