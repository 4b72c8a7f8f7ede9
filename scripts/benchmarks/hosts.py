"""Virtual hosts on this machine: network namespaces on a switch, with links of any rate.

The namespaces have no names and exist only while a process has them open, so none is left even if
this process is killed. A token bucket (``tbf`` of ``tc``) limits each direction of each link. TCP
on the hosts uses CUBIC, whatever the machine's default is.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import mean

from benchmarks.measure import Skipped

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
PORT = 5001
# Largest TCP segment in bytes: below the usual 64 KiB, so that buckets can be small, but not far
# below, because each segment costs the ranks processor time.
PIECE = 32768
BUFFER = 5_000_000  # bytes
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
        if os.geteuid() != 0 or any(shutil.which(program) is None for program in ("ip", "tc")):
            raise Skipped("Virtual hosts need root, and ip and tc of iproute2.")
        try:
            self.switch, *self.hosts = (self.namespace() for _ in range(self.count + 1))
            self.batch(
                self.switch, "ip", ["link add name switch type bridge", "link set switch up"]
            )
            for host, inside in enumerate(self.hosts):
                end = f"type veth peer name {LINK} netns {path_of(inside)}"
                self.batch(
                    self.switch,
                    "ip",
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
                self.batch(inside, "ip", [*commands, route])
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

    def shape(self, bits_per_second: float, hosts: Iterable[int] | None = None) -> None:
        """Limit both directions of the links of ``hosts``; by default of all hosts.

        Buffers hold two messages of our model, so that no packet is lost. Unlike a real link, a
        token bucket lets its whole contents pass at once, so buckets are as small as timers allow.
        """
        bytes_per_second = bits_per_second / 8
        burst = max(3 * PIECE // 2, round(bytes_per_second * 0.4e-3))
        limit = burst + BUFFER
        bucket = f"root tbf rate {round(bits_per_second)}bit burst {burst} limit {limit}"
        for host in range(self.count) if hosts is None else hosts:
            self.batch(self.hosts[host], "tc", [f"qdisc replace dev {LINK} {bucket}"])
            self.batch(self.switch, "tc", [f"qdisc replace dev port{host} {bucket}"])

    def batch(self, namespace: int, program: str, commands: Sequence[str]) -> None:
        with excursion(namespace):
            words = [program, "-batch", "-"]
            subprocess.run(
                words,
                input="\n".join(commands),
                check=True,
                capture_output=True,
                text=True,
                pass_fds=self.hosts,
            )

    def achieved(self, num_bytes: int, count: int | None = None) -> float:
        """Return the mean TCP rate in bit/s while each host sends ``num_bytes`` to the next one.

        count: number of hosts that send at the same time; default: all
        """
        count = count or self.count
        servers = [self.listen(host) for host in range(count)]
        with ThreadPoolExecutor(2 * count) as threads:
            rates = [threads.submit(receive, server) for server in servers]
            for host in range(count):
                threads.submit(self.send, host, (host + 1) % count, num_bytes)
            return mean(rate.result() for rate in rates)

    def listen(self, host: int) -> socket.socket:
        with excursion(self.hosts[host]):
            return socket.create_server((self.address(host), PORT))

    def send(self, src: int, dst: int, num_bytes: int) -> None:
        with (
            excursion(self.hosts[src]),
            socket.create_connection((self.address(dst), PORT)) as connection,
        ):
            connection.sendall(bytes(num_bytes))


def receive(server: socket.socket) -> float:
    """Receive from one connection and return its bits per second."""
    buffer = bytearray(2**20)
    with server, server.accept()[0] as connection:
        connection.recv_into(buffer)
        start, total = time.perf_counter(), 0
        while size := connection.recv_into(buffer):
            total += size
        return total * 8 / (time.perf_counter() - start)


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
