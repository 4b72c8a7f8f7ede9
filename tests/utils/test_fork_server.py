"""The server from which processes are forked ignores signals at the terminal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing.forkserver as forkserver
from pathlib import Path
from sgp_runner.utils.fork_server import start_fork_server

start_fork_server(["json"])
status = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_signals_are_blocked_in_the_fork_server() -> None:
    """Also Ctrl-C, although the resource tracker that starts with it unblocks it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    mask = int(done.stdout, 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        assert mask >> (number - 1) & 1
