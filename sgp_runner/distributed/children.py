"""Processes of ranks started by a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from signal import SIG_SETMASK, pthread_sigmask

import torch

from sgp_runner.utils.cores import asked_cores, present_cores
from sgp_runner.utils.lock import held
from sgp_runner.utils.signals import blocked, end_at_once, install_in_rank
from sgp_runner.utils.user_code import FILES

MAX_NUMPY_THREADS = 64  # threads that the OpenBLAS of its wheels starts when it is imported


class Fork:
    """A rank forked from this process, with the required methods of `subprocess.Popen`."""

    def __init__(self, process: ForkProcess) -> None:
        self.process = process

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


Child = subprocess.Popen[bytes] | Fork


def is_fresh() -> bool:
    """Return whether a fork of this process can compute, as OpenMP's threads do not survive forks.

    A plug-in may have started OpenMP's threads on import. numpy's threads are restarted by a fork.
    """
    of_numpy = min(present_cores(), asked_cores() or MAX_NUMPY_THREADS) - 1
    threads = len(os.listdir("/proc/self/task"))
    return not FILES and threads <= threading.active_count() + of_numpy


def start(
    program: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str], fork: bool
) -> Child:
    """Start ``python program words`` in a new session.

    program: ``-m`` and a module whose ``main`` takes the arguments, or a script and arguments
    fork: whether to fork this process if it has computed nothing, to import PyTorch only once
    """
    if not fork or sys.platform != "linux" or not is_fresh():
        return subprocess.Popen(
            [sys.executable, *program, *arguments],
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
        install_in_rank()
        pthread_sigmask(SIG_SETMASK, before)
        end_at_once(main(arguments))

    sys.stdout.flush()
    sys.stderr.flush()
    with blocked() as before:
        process = get_context("fork").Process(target=rank)
        process.start()
    return Fork(process)
