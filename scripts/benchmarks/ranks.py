"""Processes that live for a whole section, so that turns of a few steps need no new ones."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from benchmarks.hosts import enter, excursion

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.hosts import Hosts


class Ranks:
    """A context manager of ``size`` processes as torchrun starts them, with one thread each.

    hosts: virtual hosts, one for each process; None: all are on this machine

    Functions passed to `call` may make a process group if they destroy it.
    """

    def __init__(self, size: int, hosts: Hosts | None = None) -> None:
        from torch.distributed import TCPStore

        address = "127.0.0.1" if hosts is None else hosts.address(0)
        with nullcontext() if hosts is None else excursion(hosts.hosts[0]):
            self.store = TCPStore(
                address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
            )
        shared = {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        shared |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
        if hosts is not None:
            shared["GLOO_SOCKET_IFNAME"] = hosts.interface
        context = get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.processes.append(
                context.Process(
                    target=serve,
                    args=(there, environment, hosts and hosts.path(rank)),
                    daemon=True,
                )
            )
            self.processes[-1].start()
            there.close()
            self.pipes.append(here)

    def call(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``work``, a function of a module, in all processes and return the results."""
        for pipe in self.pipes:
            pipe.send((work, arguments))
        answers = {}
        while len(answers) < len(self.pipes):
            for pipe in wait([pipe for pipe in self.pipes if pipe not in answers]):
                answers[pipe], error = pipe.recv()
                if error is not None:
                    raise RuntimeError(error)  # the others may wait for this one
        return [answers[pipe] for pipe in self.pipes]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def serve(pipe: Connection, environment: dict[str, str], namespace: str | None) -> None:
    """Handle calls without output, on the host of ``namespace``, until the pipe is closed."""
    if namespace is not None:
        enter(namespace)
    os.environ.update(environment)
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while True:
        try:
            work, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((work(*arguments), None))
        except Exception:
            pipe.send((None, traceback.format_exc()))
