"""Rendezvous: the ranks of a real run find the store of rank 0 and wait for each other.

Each rank resolves and connects before PyTorch does, so that after some seconds it can report who
waits for whom at which address, and why.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from sgp_runner.distributed.store import LocalStore
from sgp_runner.utils.errors import Aborted, RankFailed
from sgp_runner.utils.launchers import STORE, kept_elsewhere, loopback_interface
from sgp_runner.utils.messages import logger
from sgp_runner.utils.units import duration, rank_list

ANSWER = timedelta(minutes=5)  # of the store to one request
FIRST_SECONDS, LATER_SECONDS = 10.0, 30.0  # of waiting until the first report, and between reports
POLL_SECONDS = 0.1
ANSWER_SECONDS = 5.0  # for a connection
REPORT_SECONDS = 5.0  # for rank 0 to report
LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY = "network.start_timeout_seconds"


def meet(seconds: float) -> tuple[Any, int, int]:
    """Return the store of all ranks, the rank of this process and their number.

    Raises RankFailed if some ranks do not arrive within ``seconds``.
    """
    variable = os.environ
    rank, size = int(variable["RANK"]), int(variable["WORLD_SIZE"])
    if store := variable.get(STORE):
        return LocalStore(store), rank, size
    host, port = variable["MASTER_ADDR"], int(variable["MASTER_PORT"])
    # torchrun uses the name of its host, even if all ranks are local.
    if host in LOOPBACK or variable.get("LOCAL_WORLD_SIZE") == variable["WORLD_SIZE"]:
        variable.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
    if rank == 0 and not kept_elsewhere():
        store_of_ranks = hosted(host, port)
    else:
        store_of_ranks = joined(rank, host, port, seconds)
    wait_for_ranks(store_of_ranks, rank, size, f"{host}:{port}", seconds)
    return store_of_ranks, rank, size


def joined(rank: int, host: str, port: int, seconds: float) -> TCPStore:
    """Return the store of rank 0, even if rank 0 restarts. Raises RankFailed."""
    until = time.monotonic() + seconds
    while True:
        wait_for_host(rank, host, port, max(0.0, until - time.monotonic()))
        brief = timedelta(seconds=ANSWER_SECONDS)
        try:
            store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=brief)
        except DistError as error:  # it was there a moment ago
            if time.monotonic() < until:
                continue
            where = f"the process listening at {host}:{port} is not the store of rank 0"
            raise RankFailed(f"{where}: set MASTER_ADDR and MASTER_PORT to its address.") from error
        store.set_timeout(ANSWER)
        return store


@cache
def hosted(host: str, port: int) -> TCPStore:
    """Return the store hosted by this process for all its runs. Raises RankFailed."""
    listener = listen(host, port)
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        os.close(listener)
        raise RankFailed(
            f"rank 0 cannot reach itself at {host}:{port} ({error.strerror or error}): set "
            "MASTER_ADDR to the address of its machine."
        ) from error
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=ANSWER,
        master_listen_fd=listener,
    )


def listen(host: str, port: int) -> int:
    """Open a socket for the store; a loopback address is reachable only from this machine.

    Raises RankFailed if the port is taken.
    """
    everywhere = host not in LOOPBACK
    both = everywhere and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            ("" if everywhere else host, port), family=family, dualstack_ipv6=both
        )
    except OSError as error:
        raise RankFailed(
            f"port {port} of {host} is not free ({os.strerror(error.errno or 0)}): "
            "set another MASTER_PORT."
        ) from error
    return listener.detach()


def wait_for_host(rank: int, host: str, port: int, seconds: float) -> None:
    """Wait until a process listens at the address of rank 0. Raises RankFailed."""

    def reason() -> str | None:
        try:
            socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
        except socket.gaierror:
            return f"the name {host} is unknown on this machine"
        except OSError as error:
            return (error.strerror or str(error)).lower()
        return None

    what = f"rank {rank} waits for rank 0 at {host}:{port}"
    wait(what, reason, seconds, "start rank 0, or set MASTER_ADDR and MASTER_PORT to its address")


def wait_for_ranks(store: Store, rank: int, size: int, where: str, seconds: float) -> None:
    """Wait until all ranks have reached the store. Raises RankFailed, or Aborted without store."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    here = PrefixStore(f"here {attempt}", store)

    def reason() -> str | None:
        absent = [other for other in range(size) if not here.check([str(other)])]
        return f"{rank_list(absent)} of {size} did not come" if absent else None

    fix = f"start all {size} with the same MASTER_ADDR and MASTER_PORT"
    try:
        here.set(str(rank), "")
        # Rank 0 gives up first, and reports.
        patience = seconds if rank == 0 else seconds + REPORT_SECONDS
        wait(f"rank {rank} waits at {where}", reason, patience, fix, reports=rank == 0)
    except DistError as error:
        raise Aborted("the host of the store is gone") from error


def wait(
    what: str, reason: Callable[[], str | None], seconds: float, fix: str, reports: bool = True
) -> None:
    """Wait until ``reason`` returns none, warning periodically with ``what`` and the reason.

    A signal is stored for the watchdog, which informs ranks that arrive later. If none arrive, the
    process exits some seconds after the signal (`signals.signal_thread`). Raises RankFailed after
    ``seconds``.
    """
    started = time.monotonic()
    report_at = FIRST_SECONDS
    while (why := reason()) is not None:
        waited = time.monotonic() - started
        if waited >= seconds:
            raise RankFailed(f"{what}: {why}, for {duration(round(waited))} ({KEY}): {fix}.")
        if reports and waited >= report_at:
            logger.warning(f"{what}: {why}")
            report_at += LATER_SECONDS
        time.sleep(POLL_SECONDS)
