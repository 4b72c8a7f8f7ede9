"""Starting commands that a test will interrupt, and finding out what is left of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sgp_runner.assembly.real import launch
from sgp_runner.utils.launchers import STORE, loopback_interface

PREFIX = "sgp-rank-"  # of the name of a forked rank


def hear_interrupts() -> None:
    """To run in a new process before its program: what runs in the background of a shell inherits
    that SIGINT is ignored.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def hears(process: int) -> bool:
    """Whether the process has reached our first lines, which install handlers."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)


def wait_for_ranks(folder: Path, count: int) -> list[int]:
    """Process ids of the ranks, once all of them have recorded a step."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        training = [path for path in folder.glob("runs/*/metrics*.jsonl") if path.stat().st_size]
        if len(training) == count and len(ranks := ranks_of(folder)) == count:
            return ranks
        time.sleep(0.05)
    raise TimeoutError(f"{count} ranks did not start")


def check_no_rank_is_left(folder: Path) -> None:
    """The launcher of MPI kills without waiting, so a rank may end after the command."""
    wait_until(lambda: not ranks_of(folder), "the end of all ranks", seconds=300)


def ranks_of(folder: Path) -> list[int]:
    """Process ids of living ranks whose configuration lies in ``folder``, or that work for it.

    A rank that was forked has the command line of the other process, and a name. It works in the
    folder, or holds the lock of a run there.
    """
    found = []
    for process in Path("/proc").iterdir():
        try:
            arguments = (
                (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
            )
            forked = bool(arguments) and forked_rank(int(process.name)) is not None
            there = forked and any(
                Path(os.readlink(link)).is_relative_to(folder)
                for link in (process / "cwd", *(process / "fd").iterdir())
            )
        except OSError:
            continue
        text = b" ".join(arguments).decode(errors="replace")
        rank = forked or any(
            mark in text for mark in ("assembly.rank_process", "real_rank.py", "network=mpi")
        )
        if rank and (str(folder) in text or there) and b"python" in arguments[0]:
            found.append(int(process.name))
    return sorted(found)


def forked_rank(pid: int) -> int | None:
    """The rank of a process that was forked from its launching one; None for others."""
    name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return int(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None


def processes_of(folder: Path) -> dict[int, int]:
    """Process ids of living ranks that were started on this machine, by rank."""
    found = {}
    for pid in ranks_of(folder):
        rank = forked_rank(pid)
        if rank is None:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            (rank,) = (int(pair[5:]) for pair in environment if pair.startswith(b"RANK="))
        found[rank] = pid
    return found


def run_world(folder: Path, size: int, *program: str) -> None:
    """Run a program as ``size`` ranks that meet in a store in ``folder``; all of them succeed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "WORLD_SIZE": str(size),
        STORE: str(folder / "store"),
    }
    children = []
    try:
        for rank in map(str, range(size)):
            variables = {"RANK": rank, "LOCAL_RANK": rank}
            children.append(launch.start(program, [], environment | variables, False))
        assert launch.wait_for(children) == [0] * size
    finally:
        launch.stop(children)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)
