"""Control groups that give each host an equal share of the processors, busy or not.

Without them a node would compute faster while others wait for messages, unlike in a cluster.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from benchmarks.measure import Skipped

QUOTA = 1000  # microseconds of processor time per period; the least that Linux accepts
CONTROL = Path("/sys/fs/cgroup")


class Processors:
    """A context manager that makes ``count`` control groups. Raises Skipped where it cannot."""

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
        """Divide the processors among ``hosts`` hosts that compute at the same time."""
        # One thread of a host computes.
        period = max(QUOTA, round(QUOTA * hosts / (os.cpu_count() or 1)))
        for group in self.groups:
            if self.second:
                (group / "cpu.max").write_text(f"{QUOTA} {period}", encoding="ascii")
            else:
                (group / "cpu.cfs_period_us").write_text(str(period), encoding="ascii")
                (group / "cpu.cfs_quota_us").write_text(str(QUOTA), encoding="ascii")

    def path(self, host: int) -> Path:
        """The file of a host's control group, for `join`."""
        return self.groups[host] / "cgroup.procs"


def join(path: Path) -> None:
    """Move this process, with the processes it starts, into a control group."""
    path.write_text(str(os.getpid()), encoding="ascii")
