"""Causes on this machine that prevent a rank from connecting to the others."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from sgp_runner.utils.errors import RankFailed
from sgp_runner.utils.network_interfaces import chooses_none, interfaces

FEW_FILES = os.strerror(errno.EMFILE)
NO_MEMORY = (os.strerror(errno.ENOMEM), os.strerror(errno.EAGAIN), "bad_alloc")


@contextmanager
def explaining_local_causes(rank: int, backend: str) -> Iterator[None]:
    """Raise RankFailed for a missing network interface, too few files or too little memory.

    Gloo raises RuntimeError for these, as for a lost rank.
    """
    names = [name for _, name in socket.if_nameindex()]
    for library in {"GLOO", backend.upper()}:
        value = os.environ.get(f"{library}_SOCKET_IFNAME")
        if value and chooses_none(library, value, names):
            present = ", ".join(f"{name} ({address})" for name, address in interfaces().items())
            raise RankFailed(
                f"rank {rank}: {library}_SOCKET_IFNAME={value} names no interface of this "
                f"machine, which has {present or 'none with an address'}."
            )
    try:
        yield
    except RuntimeError as error:
        if FEW_FILES in str(error):
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise RankFailed(
                f"rank {rank} may open {limit} files, too few for its connections: raise the "
                "limit (ulimit -n 1024)."
            ) from error
        if any(text in str(error) for text in NO_MEMORY):
            raise RankFailed(
                f"rank {rank} has too little memory, or may start too few threads, for its "
                "connections (ulimit -v, ulimit -u)."
            ) from error
        raise
