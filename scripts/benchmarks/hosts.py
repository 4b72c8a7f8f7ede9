"""Virtual hosts on this machine: network namespaces, joined by a switch over links of any rate.

An unnamed namespace exists only while a process has it open, so none remains even if this process
is killed. Each link is a token bucket (``tbf`` of ``tc``) in either direction. TCP on the hosts is
CUBIC, whatever the machine's default is.
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
# Largest segment of TCP in bytes: below the usual 64 KiB, so that buckets can be small, but
# not far below, because each segment takes processor time from the ranks.
PIECE = 32768
BUFFER = 5_000_000  # bytes
LINK = "eth0"


class Here:
    """This machine instead of virtual hosts, which needs no root."""

    interface = "lo"

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def path(self, host: int) -> None:
        """Return no namespace."""

    def at(self, host: int) -> AbstractContextManager[None]:
        return nullcontext()


class Hosts:
    """A context manager that makes ``count`` hosts with addresses 10.77.0.1, 10.77.0.2, ...

    Raises Skipped where they cannot be made.
    """

    interface = LINK

    def __init__(self, count: int) -> None:
        self.count = count
        self.open = ExitStack()
        self.switch = -1
        self.hosts: list[int] = []  # open files, each a namespace

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
        """Return the namespace of a host, for `enter`."""
        return path_of(self.hosts[host])

    def at(self, host: int) -> AbstractContextManager[None]:
        """Move this thread to a host for a while."""
        return excursion(self.hosts[host])

    def shape(self, bits_per_second: float, hosts: Iterable[int] | None = None) -> None:
        """Limit the links of ``hosts`` in either direction; by default the links of all hosts.

        Buffers hold two messages of our model, so that no packet is lost. Unlike on a real link,
        the contents of a full bucket pass at once, so buckets are as small as timers allow.
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
        """Return the mean TCP bits/s when ``count`` hosts send ``num_bytes`` to the next at once.

        count: number of hosts; by default all
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
    """Move this thread, with the processes it starts, into a namespace."""
    namespace = os.open(path, os.O_RDONLY)
    try:
        check(libc().setns(namespace, CLONE_NEWNET))
    finally:
        os.close(namespace)


@contextmanager
def excursion(namespace: int | None = None) -> Iterator[None]:
    """Move this thread into ``namespace``, unless it is None, and back at the end."""
    home = os.open(OWN, os.O_RDONLY)
    try:
        if namespace is not None:
            check(libc().setns(namespace, CLONE_NEWNET))
        yield
    finally:
        check(libc().setns(home, CLONE_NEWNET))
        os.close(home)
