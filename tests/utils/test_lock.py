"""A folder has one writer at a time, and the kernel lets go of it when that is gone."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sgp_runner.cli.main import main
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.lock import FILE, locked

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

TINY = [
    "model=quadratic",
    "data.samples=64",
    "data.dimension=4",
    "nodes=2",
    "epochs=1",
    "logger=jsonl",
    "name=mine",
]
# Locks the folder, starts a child that inherits the lock, tells its id, and waits to be killed.
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from sgp_runner.utils.lock import held, locked
with locked(Path(sys.argv[1])):
    fds = held if sys.argv[2] == "shared" else ()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin, pass_fds=fds)
    print(child.pid, flush=True)
    time.sleep(1000)
"""


def test_a_file_system_without_locks_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(Path("mine")):
        pass
    assert caplog.messages == [
        "mine is on a file system without locks; start no second process there."
    ]
    assert not Path("mine").exists()


def test_a_second_process_is_refused_and_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(TINY) == 0
    directory = Path("results/runs/mine")
    (directory / "summary.json").unlink()
    with locked(directory):
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        capfd.readouterr()
        for arguments, code in ((TINY, 2), ([*TINY, "resume=never"], 2), (["-m", *TINY], 1)):
            assert main(arguments) == code
            assert capfd.readouterr().err == (
                "sgp-run: name: another process is at work in results/runs/mine; wait for it, or "
                "choose another name.\n"
            )
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert not (directory / FILE).exists()
    assert main(TINY) == 0


def test_a_folder_that_was_made_for_nothing_is_taken_away() -> None:
    for way_out in (ConfigError, KeyboardInterrupt):
        with pytest.raises(way_out), locked(Path("a/b/c")):
            raise way_out("key", "sentence")
        assert not Path("a").exists()
    with locked(Path("a/b")):
        Path("a/file").touch()
    assert [str(path) for path in Path().rglob("*")] == ["a", "a/file"]


def is_locked(directory: Path) -> bool:
    try:
        with locked(directory):
            return False
    except ConfigError:
        return True


def test_the_lock_is_free_once_the_last_of_its_holders_is_killed() -> None:
    directory = Path("run").absolute()
    for shared in ("shared", "own"):
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory), shared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout is not None and holder.stdin is not None
            holder.stdout.readline()
            assert is_locked(directory)
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            assert is_locked(directory) == (shared == "shared")  # its child lives on
            holder.stdin.write("\n")
            holder.stdin.flush()
            holder.stdout.read()  # until the child has ended
        assert not is_locked(directory)
