"""Pool of processes: several tasks at a time, as cores and memory permit.

Each task runs in a new process, forked from a server that has imported PyTorch once. The process
starts within milliseconds and inherits no state of earlier tasks. Killing it does not affect other
tasks.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import NoReturn

from sgp_runner.utils.errors import Stopped
from sgp_runner.utils.fork_server import start_fork_server
from sgp_runner.utils.messages import QUIET, logger, show_messages
from sgp_runner.utils.signals import (
    SAVED,
    SIGNALS,
    cause,
    end_at_once,
    install,
    stop_signals,
)

# Imported once by the server, without starting a thread.
IMPORTED = (
    *("torch", "torch._dynamo", "sgp_runner.config.overrides", "sgp_runner.assembly.execution"),
    *("sgp_runner.assembly.simulated.backend", "sgp_runner.console.progress"),
    *("sgp_runner.core.zeros", "sgp_runner.assembly.dry_run", "sgp_runner.models.vector"),
    "sgp_runner.jobs.shared_facts",
)


@dataclass(frozen=True)
class PoolTask:
    """A call in a new process.

    number: number of the task, for the caller
    call: function to call; it and its result are pickled, because it runs in another process
    lock_key: tasks with the same key run one after another
    cores: cores that the task keeps busy
    memory: memory that the task needs, in bytes
    log: file for the output of the process; None = discard the output
    """

    number: int
    call: Callable[[], object]
    lock_key: object
    cores: int = 1
    memory: int = 0
    log: Path | None = None


@dataclass(frozen=True)
class Ended:
    """A finished task.

    result: result of the call; None if the process ended without a result
    exit_code: exit code of the process; negative signal number if a signal killed it
    seconds: seconds from the start of the task to its end
    """

    task: PoolTask
    result: object
    exit_code: int | None
    seconds: float


class Pool:
    """Processes for at most ``most`` tasks at a time.

    All running tasks together keep at most ``cores`` cores busy and use at most ``memory`` bytes; a
    task that exceeds these limits runs alone. The pool is a context manager: on exit, running tasks
    are stopped.

    imported: modules that the server imports in addition to PyTorch
    """

    def __init__(self, most: int, cores: int, memory: int, imported: Sequence[str] = ()) -> None:
        self.most, self.cores, self.memory = most, cores, memory
        self.imported = [*IMPORTED, *imported]
        self.processes: dict[Connection, tuple[PoolTask, BaseProcess, float]] = {}
        self.stopping = False

    def __enter__(self) -> Pool:
        self.context = start_fork_server(self.imported)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        while self.processes:
            self.ended()

    @property
    def running(self) -> list[PoolTask]:
        return [task for task, *_ in self.processes.values()]

    def run(self, tasks: Iterable[PoolTask]) -> Iterator[Ended]:
        """Start the tasks in order and yield each as it finishes; start none after `stop`.

        The next task is taken from ``tasks`` only when fewer than ``most`` tasks run.
        """
        waiting, task = iter(tasks), None
        while True:
            if task is None and not self.stopping and len(self.processes) < self.most:
                task = next(waiting, None)
            if task is not None and not self.stopping and self.has_room(task):
                self.start(task)
                task = None
            elif self.processes:
                yield from self.ended()
            else:
                return

    def run_until_stopped(self, tasks: Iterable[PoolTask], total: float = inf) -> Iterator[Ended]:
        """Run the tasks and yield each that returns a result or fails.

        After a signal, all running tasks save; then this raises Stopped, unless all ``total`` have
        ended.
        """
        signals: list[int] = []
        ends = 0

        def stop(number: int, frame: FrameType | None) -> None:
            signals.append(number)
            self.stop()

        with stop_signals(stop):
            for ended in self.run(tasks):
                if ended.result is not None or not self.stopping:
                    ends += 1
                    yield ended
        if signals and ends < total:
            raise Stopped(f"{cause(signals[0])}. Run the same command again to resume.", signals[0])

    def has_room(self, task: PoolTask) -> bool:
        running = self.running
        return not running or (
            len(running) < self.most
            and task.lock_key not in [other.lock_key for other in running]
            and task.cores + sum(other.cores for other in running) <= self.cores
            and task.memory + sum(other.memory for other in running) <= self.memory
        )

    def start(self, task: PoolTask) -> None:
        ours, theirs = self.context.Pipe()
        quiet = os.environ.get(QUIET, "")  # now; the server of the context may be older
        process = self.context.Process(target=work, args=(theirs, task.call, task.log, quiet))
        process.start()
        theirs.close()
        self.processes[ours] = task, process, time.monotonic()
        if self.stopping:  # while the process started
            process.terminate()

    def ended(self) -> list[Ended]:
        """Wait until at least one task has ended, and return all that have."""
        done = []
        for connection in wait(list(self.processes)):
            assert isinstance(connection, Connection)
            task, process, began = self.processes.pop(connection)
            result = None
            with connection, suppress(EOFError, OSError):
                result = connection.recv()
            process.join()
            done.append(Ended(task, result, process.exitcode, time.monotonic() - began))
        return done

    def stop(self) -> None:
        """Ask all running tasks to save and stop, and start no further tasks."""
        self.stopping = True
        for _, process, _ in list(self.processes.values()):
            process.terminate()


def work(
    connection: Connection, call: Callable[[], object], log: Path | None, quiet: str
) -> NoReturn:
    """Make the call in this process and send its result."""
    os.environ[QUIET] = quiet
    print_to(log or Path(os.devnull))
    show_messages()
    install("")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # not Ctrl-C: then the parent stops it
    Thread(target=end_with_parent, args=(connection,), daemon=True).start()
    code = 0
    try:
        connection.send(call())
    except Stopped as error:
        logger.info(str(error))
        code = SAVED
    end_at_once(code)


def print_to(log: Path) -> None:
    """Redirect the output of this process to the file ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def end_with_parent(connection: Connection) -> None:
    """Save and stop the task of this process when the parent process has ended."""
    with suppress(EOFError, OSError):
        connection.recv()
    os.kill(os.getpid(), signal.SIGTERM)
