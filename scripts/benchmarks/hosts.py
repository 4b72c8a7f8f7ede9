"""Virtual hosts on this machine: network namespaces on a switch.

The namespaces have no names and exist only while a process has them open, so none is left even if
this process is killed. TCP on the hosts uses CUBIC, whatever the machine's default is.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from benchmarks.measure import Skipped

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
# Largest TCP segment in bytes: below the usual 64 KiB.
PIECE = 32768
LINK = "eth0"


class Here:
    """This machine without virtual hosts and without root; it has the same interface as `Hosts`."""

    interface = "lo"

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def path(self, host: int) -> None:
        """Return None: there is no namespace."""

    def at(self, host: int) -> AbstractContextManager[None]:
        return nullcontext()


class Hosts:
    """A context manager that makes ``count`` hosts with addresses 10.77.0.1, 10.77.0.2, ...

    Raises Skipped if hosts cannot be made here.
    """

    interface = LINK

    def __init__(self, count: int) -> None:
        self.count = count
        self.open = ExitStack()
        self.switch = -1
        self.hosts: list[int] = []  # file descriptors of the namespaces

    def __enter__(self) -> Hosts:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Skipped("Virtual hosts need root, and ip of iproute2.")
        try:
            self.switch, *self.hosts = (self.namespace() for _ in range(self.count + 1))
            self.batch(self.switch, ["link add name switch type bridge", "link set switch up"])
            for host, inside in enumerate(self.hosts):
                end = f"type veth peer name {LINK} netns {path_of(inside)}"
                self.batch(
                    self.switch,
                    [
                        f"link add name port{host} {end}",
                        f"link set port{host} master switch gso_max_size {PIECE} up",
                    ],
                )
                address = self.address(host)
                commands = [
                    "link set lo up",
                    f"address add {address}/24 dev {LINK}",
                    f"link set {LINK} gso_max_size {PIECE} up",
                ]
                route = (
                    f"route replace 10.77.0.0/24 dev {LINK} proto kernel scope link src {address} "
                    "congctl cubic"
                )
                self.batch(inside, [*commands, route])
        except (OSError, subprocess.CalledProcessError) as error:
            self.open.close()
            raise Skipped(
                f"Virtual hosts cannot be made here: {getattr(error, 'stderr', None) or error}"
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        self.open.close()

    def namespace(self) -> int:
        with excursion():
            check(libc().unshare(CLONE_NEWNET))
            namespace = os.open(OWN, os.O_RDONLY)
        self.open.callback(os.close, namespace)
        return namespace

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def path(self, host: int) -> str:
        """Return the path of a host's namespace, for `enter`."""
        return path_of(self.hosts[host])

    def at(self, host: int) -> AbstractContextManager[None]:
        """Return a context manager that moves this thread to a host and back."""
        return excursion(self.hosts[host])

    def batch(self, namespace: int, commands: Sequence[str]) -> None:
        with excursion(namespace):
            words = ["ip", "-batch", "-"]
            subprocess.run(
                words,
                input="\n".join(commands),
                check=True,
                capture_output=True,
                text=True,
                pass_fds=self.hosts,
            )


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def check(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def path_of(file: int) -> str:
    return f"/proc/{os.getpid()}/fd/{file}"


def enter(path: str | Path) -> None:
    """Move this thread and the processes that it starts into a network namespace."""
    namespace = os.open(path, os.O_RDONLY)
    try:
        check(libc().setns(namespace, CLONE_NEWNET))
    finally:
        os.close(namespace)


@contextmanager
def excursion(namespace: int | None = None) -> Iterator[None]:
    """Move this thread into ``namespace``, unless it is None, and move it back at the end."""
    home = os.open(OWN, os.O_RDONLY)
    try:
        if namespace is not None:
            check(libc().setns(namespace, CLONE_NEWNET))
        yield
    finally:
        check(libc().setns(home, CLONE_NEWNET))
        os.close(home)
