"""Processes that live for a whole section, so that turns of a few steps need no new ones."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class Ranks:
    """A context manager of ``size`` processes as torchrun starts them, with one thread each.

    Functions passed to `call` may make a process group if they destroy it.
    """

    def __init__(self, size: int) -> None:
        from torch.distributed import TCPStore

        self.store = TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
        )
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        shared |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
        context = get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.processes.append(
                context.Process(target=serve, args=(there, environment), daemon=True)
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


def serve(pipe: Connection, environment: dict[str, str]) -> None:
    """Handle calls without output until the pipe is closed."""
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
