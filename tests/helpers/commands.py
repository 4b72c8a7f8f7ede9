"""Commands in processes of their own, forked from the server of `rank_server`.

A test whose subject is the start of an interpreter, or what it imports, starts one instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from types import TracebackType

from helpers.rank_server import Descriptor, fork_of_server
from sgp_runner.distributed.children import Child, Fork


class Command:
    """``python -m module words``, with the attributes of `subprocess.Popen` that tests use.

    folder: where it works; this process's if None
    variables: environment variables, besides those of this process
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        module: str = "sgp_runner",
    ) -> None:
        self.outputs = [TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115
        place, environment = str(folder or Path.cwd()), {**os.environ, **(variables or {})}
        self.child: Child
        if sys.platform == "linux":
            into = [Descriptor(output.fileno(), 1 + i) for i, output in enumerate(self.outputs)]
            process = fork_of_server(("-m", module), arguments, environment, place, into)
            assert process.pid is not None
            self.child, self.pid = Fork(process), process.pid  # type: ignore[arg-type]
        else:
            out, error = self.outputs
            command = [sys.executable, "-m", module, *arguments]
            self.child = subprocess.Popen(
                command, cwd=place, env=environment, stdout=out, stderr=error
            )
            self.pid = self.child.pid

    def __enter__(self) -> Command:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.child.kill()
        self.child.wait()

    @property
    def returncode(self) -> int | None:
        return self.child.poll()

    def poll(self) -> int | None:
        return self.child.poll()

    def send_signal(self, number: int) -> None:
        self.child.send_signal(number)

    def kill(self) -> None:
        if self.poll() is None:
            self.child.kill()

    def wait(self) -> int:
        return self.child.wait()

    def communicate(self, seconds: float = 900.0) -> tuple[str, str]:
        """Return what it has written to stdout and to stderr, once it has ended.

        Raises AssertionError with it, and kills the command, if it takes longer than ``seconds``.
        """
        late = Timer(seconds, self.child.kill)
        late.start()
        self.child.wait()
        over = late.finished.is_set()
        late.cancel()
        for file in self.outputs:
            file.seek(0)
        out, error = (file.read() for file in self.outputs)
        assert not over, f"killed after {seconds:g} s: {out}{error}"
        return out, error


def run_command(
    *arguments: str,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    module: str = "sgp_runner",
) -> subprocess.CompletedProcess[str]:
    with Command(*arguments, folder=folder, variables=variables, module=module) as command:
        out, error = command.communicate()
    return subprocess.CompletedProcess(arguments, command.child.wait(), out, error)
