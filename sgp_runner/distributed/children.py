"""Processes of the ranks that a launcher starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask
from typing import TYPE_CHECKING, Protocol

import torch

from sgp_runner.utils.lock import held
from sgp_runner.utils.signals import ENDING, end_at_once, hear_as_rank

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess


class Child(Protocol):
    """A started rank, as `subprocess.Popen` describes it."""

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...

    def send_signal(self, sig: int) -> None: ...


class Fork:
    """A rank forked from this process."""

    def __init__(self, process: ForkProcess) -> None:
        self.process = process

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode or 0

    def send_signal(self, sig: int) -> None:
        if self.process.exitcode is None:
            assert self.process.pid is not None
            os.kill(self.process.pid, sig)


def start(
    program: Sequence[str], words: Sequence[str], environment: Mapping[str, str], fork: bool
) -> Child:
    """Start ``python program words`` in a session of its own.

    program: ``-m`` and a module, which has a function ``main`` of the words, or a script and words
    fork: from this process, which must have computed nothing; PyTorch is imported once then
    """
    if not fork or sys.platform != "linux":
        return subprocess.Popen(
            [sys.executable, *program, *words],
            env=dict(environment),
            pass_fds=held,
            start_new_session=True,
        )
    main = import_module(program[1]).main

    def rank() -> None:
        os.setsid()
        with suppress(OSError):  # for ps and top, to which all ranks look alike otherwise
            Path("/proc/self/comm").write_text(f"sgp-rank-{environment['RANK']}", encoding="ascii")
        if "OMP_NUM_THREADS" not in os.environ:  # which PyTorch has read
            torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
        os.environ.update(environment)
        hear_as_rank()
        pthread_sigmask(SIG_SETMASK, before)
        end_at_once(main(words))

    sys.stdout.flush()
    sys.stderr.flush()
    before = pthread_sigmask(SIG_BLOCK, ENDING)
    try:
        process = get_context("fork").Process(target=rank)
        process.start()
    finally:
        pthread_sigmask(SIG_SETMASK, before)
    return Fork(process)
