"""Ranks and commands of tests, forked from a server that has imported PyTorch once: an interpreter
that starts takes 2.5 s of a core.

One server per process of pytest. A fork gets the words, environment, folder and output that a new
interpreter would get.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import get_context, reduction, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, getrlimit
from typing import Any

import torch

from helpers.paths import HELPERS
from sgp_runner.distributed import children
from sgp_runner.utils.launchers import PARENT, QUIET_LIBRARIES, STORE
from sgp_runner.utils.lock import held

FORKED = (
    *("real_rank.py", "paired_rank.py", "odd_rank.py", "slow_real_rank.py"),
    *("collective_rank.py", "device_messages.py", "averager_rank.py", "noted_rank.py"),
    *("calibration_rank.py", "symptom_rank.py", "gather_rank.py"),
)
# What ranks import late, too: data parallelism imports the compiler, which takes 1.2 s of a core.
IMPORTED = (
    *("torch.distributed", "torch._dynamo", "sgp_runner.assembly.real.rank_backend"),
    *("sgp_runner.distributed.torch_world", "sgp_runner.console.summary"),
    *("sgp_runner.assembly.start", "sgp_runner.cli.main", "helpers.experiments"),
    *("helpers.compositions", __name__),
)


class Descriptor:
    """Descriptor of this process that the rank gets as ``number``, or as any number if None."""

    def __init__(self, descriptor: int, number: int | None = None) -> None:
        self.descriptor, self.number = descriptor, number

    def __getstate__(self) -> tuple[Any, int | None]:
        return reduction.DupFd(self.descriptor), self.number

    def __setstate__(self, state: tuple[Any, int | None]) -> None:
        received, self.number = state
        self.descriptor = received.detach()

    def take(self) -> None:
        if self.number is not None:
            os.dup2(self.descriptor, self.number)
            os.close(self.descriptor)
        os.set_inheritable(self.descriptor if self.number is None else self.number, True)


@cache
def server() -> ForkServerContext:
    """Return the server, which ends with the last process that it serves, but not by SIGTERM.

    A time limit such as ``timeout 600 pytest`` sends SIGTERM to the whole process group. The run of
    a test then ends with a sentence about the signal; without its server, it would be an EOFError.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    before = dict(os.environ)
    os.environ.update(QUIET_LIBRARIES)  # which PyTorch reads when it is imported
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    resource_tracker.ensure_running()  # which unblocks signals that were blocked
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        from multiprocessing.forkserver import ensure_running

        ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.environ.clear()
        os.environ.update(before)
    return context


def start(
    program: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str], fork: bool
) -> children.Child:
    """Start ``python program words``, as `children.start` does.

    Programs that are not listed above get an interpreter, because they change PyTorch before it is
    imported, and so do ranks with a limit of this process, which the server does not have.
    """
    limited = getrlimit(RLIMIT_FSIZE)[0] != RLIM_INFINITY
    if limited or (program[0] != "-m" and Path(program[0]).name not in FORKED):
        return children.start(program, arguments, environment, fork)
    sys.stdout.flush()
    sys.stderr.flush()
    outputs = [Descriptor(1, 1), Descriptor(2, 2), *map(Descriptor, held)]
    process = fork_of_server(program, arguments, environment, os.getcwd(), outputs)
    return children.Fork(process)  # type: ignore[arg-type]


def fork_of_server(
    program: Sequence[str],
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    outputs: list[Descriptor],
) -> ForkServerProcess:
    arguments = (list(program), list(argv), dict(environment), folder, outputs)
    process = server().Process(target=run, args=arguments)
    process.start()
    return process


def run(
    program: list[str],
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    outputs: list[Descriptor],
) -> None:
    os.setsid()
    for output in outputs:
        output.take()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if STORE in environment:  # of a rank that a process here has launched
        os.environ[PARENT] = str(os.getppid())
        with suppress(OSError):
            name_of_process = f"sgp-rank-{environment['RANK']}"
            Path("/proc/self/comm").write_text(name_of_process, encoding="ascii")
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if "SHOTS" in environment:
        runpy.run_path(str(HELPERS / "shots" / "sitecustomize.py"))
    name = program[1] if program[0] == "-m" else program[0]
    sys.argv = [name, *program[2 if program[0] == "-m" else 1 :], *arguments]
    sys.path[0] = folder if program[0] == "-m" else str(Path(name).parent)
    code = 0
    try:
        if program[0] == "-m":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
