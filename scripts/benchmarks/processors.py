"""An equal share of this machine's processors for each host, whether the others are busy or not: a
control group each.

Without it a node would compute faster while others wait for messages, which no node of a cluster
does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from benchmarks.measure import Skipped

QUOTA = 1000  # microseconds of processor time that a host has at once; the least that Linux takes
CONTROL = Path("/sys/fs/cgroup")


class Processors:
    """Shares for ``count`` hosts; a context manager. Raises Skipped where there are no control
    groups of one's own.
    """

    def __init__(self, count: int) -> None:
        self.second = (CONTROL / "cgroup.controllers").exists()  # version 2 of control groups
        above = CONTROL if self.second else CONTROL / "cpu"
        self.groups = [above / f"sgp-bench-{os.getpid()}-{host}" for host in range(count)]

    def __enter__(self) -> Processors:
        try:
            if self.second:
                (CONTROL / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
            for group in self.groups:
                group.mkdir()
        except OSError as error:
            self.__exit__()
            raise Skipped(
                f"Hosts with processors of their own need a control group: {error}"
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        for group in self.groups:
            with suppress(FileNotFoundError):
                group.rmdir()

    def divide(self, hosts: int) -> None:
        """Among so many hosts, which compute at the same time."""
        period = max(
            QUOTA, round(QUOTA * hosts / (os.cpu_count() or 1))
        )  # a host has one thread that computes
        for group in self.groups:
            if self.second:
                (group / "cpu.max").write_text(f"{QUOTA} {period}", encoding="ascii")
            else:
                (group / "cpu.cfs_period_us").write_text(str(period), encoding="ascii")
                (group / "cpu.cfs_quota_us").write_text(str(QUOTA), encoding="ascii")

    def path(self, host: int) -> Path:
        """Where a process writes that it belongs to this host."""
        return self.groups[host] / "cgroup.procs"


def join(path: Path) -> None:
    """This process, and what it starts, has the host's share from now on."""
    path.write_text(str(os.getpid()), encoding="ascii")
