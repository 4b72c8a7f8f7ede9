"""Waiting until the messages of a rank have arrived, and the others wait for it: then it dies."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Event

import torch

from helpers.processes import ranks_of
from sgp_runner.core.comm import Comm
from sgp_runner.distributed.gloo_transport import GlooTransport, Transfer

LOCAL, REMOTE, QUEUES, INODE = 1, 2, 4, 9  # columns of /proc/net/tcp
EMPTY = "00000000:00000000"
LOOKS = 5  # a thread that wakes another one, or a message, may be between two states


def connections(process: int) -> tuple[list[list[str]], list[list[str]]]:
    """The ends of connections of a process, and those of all processes on this machine."""
    sockets = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            sockets.add(os.readlink(descriptor))
    every = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [line for line in every if f"socket:[{line[INODE]}]" in sockets], every


def queued(process: int) -> int:
    """Ends on this machine of the connections of a process that hold bytes not yet read."""
    ends, every = connections(process)
    ours = {line[LOCAL] for line in ends}
    return sum(
        line[QUEUES] != EMPTY and not ours.isdisjoint((line[LOCAL], line[REMOTE])) for line in every
    )


def num_bytes_unread(process: int) -> int:
    """Bytes that have arrived at a process and that it has not read; grows while it is stopped."""
    return sum(int(line[QUEUES].partition(":")[2], 16) for line in connections(process)[0])


def wait_for_arrival(comm: Comm) -> None:
    """Return once the other ranks have received all that this one has sent."""
    assert isinstance(comm.transport, GlooTransport)
    written = Event()
    comm.transport.outbox.put(lambda: Transfer(0, torch.empty(0), lambda piece: None, written.set))
    written.wait()
    while queued(os.getpid()):
        time.sleep(0.01)


def wait_for_rest(folder: Path) -> None:
    """Return once the other ranks of a run in ``folder`` have come as far as they can."""
    looks = 0
    while looks < LOOKS:
        others = [rank for rank in ranks_of(folder) if rank != os.getpid()]
        looks = 0 if queued(os.getpid()) or any(map(computes, others)) else looks + 1
        time.sleep(0.01)


def computes(process: int) -> bool:
    """Whether a thread of the process has a core, or wants one, or waits for a disk."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):  # it has ended
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False
