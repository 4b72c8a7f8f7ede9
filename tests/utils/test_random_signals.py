"""Signals at a hundred random moments of short runs on each backend: the promised exit code, and at
most one sentence.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.processes import hear_interrupts, hears

SHOTS, AT_ONCE = int(os.environ.get("SHOTS_FIRED", "100")), 3
COMMAND = (sys.executable, "-m", "sgp_runner")
MPIRUN = (str(Path(sys.executable).with_name("mpirun")), "--oversubscribe", "-n", "2", *COMMAND)
RUN = ("model=mlp", "nodes=2", "epochs=2", "logger=jsonl", "name=run")
EVERY_SIGNAL = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)  # by mpirun; others end it by itself
NO_START = "listener thread failed to start"  # said by mpirun, at times, before there are ranks
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def offspring(process: int) -> list[int]:
    """Process ids of all descendants that hear signals."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(word) for word in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *offspring(child)]
    return [descendant for descendant in found if hears(descendant)]


class Gun:
    """Starts a command in a folder of its own and signals one of its processes after a while.

    launcher: the only signals for the started process itself, once two ranks hear them too
    """

    def __init__(
        self, folder: Path, command: tuple[str, ...], launcher: tuple[signal.Signals, ...] = ()
    ) -> None:
        self.folder, self.command, self.launcher = folder, command, launcher
        self.seconds = 60.0  # how long a run takes at most after its first line

    def start(self, number: int) -> subprocess.Popen[str]:
        (self.folder / str(number)).mkdir(exist_ok=True)
        process = subprocess.Popen(
            self.command,
            cwd=self.folder / str(number),
            env=ENVIRONMENT,
            preexec_fn=hear_interrupts,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while process.poll() is None and not self.ready(process.pid):
            time.sleep(0.002)
        if self.launcher and process.poll() is not None:  # nothing was signalled yet
            assert process.stderr is not None
            error = process.stderr.read()
            assert NO_START in error, error
            return self.start(number)
        return process

    def ready(self, process: int) -> bool:
        return len(offspring(process)) == 2 if self.launcher else hears(process)

    def shoot(self, number: int) -> str:
        """Return the outcome of a run that is signalled on its way, in words."""
        dice = random.Random(number)
        process = self.start(number)
        started = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(dice.random() * self.seconds)
            self.seconds = min(self.seconds, time.monotonic() - started)
        victim = dice.choice([process.pid, *offspring(process.pid)])
        to_launcher = self.launcher and victim == process.pid
        name = dice.choice(self.launcher if to_launcher else EVERY_SIGNAL)
        with suppress(ProcessLookupError):
            os.kill(victim, name)
        _, error = process.communicate(timeout=1000)
        said = [line for line in error.splitlines() if line.startswith("sgp-run: ")]
        ended = (self.folder / str(number) / "results/runs/run/summary.json").exists()
        expected = 130 if name == signal.SIGINT else 75
        right = process.returncode == expected or (ended and process.returncode == 0)
        # A rank that mpirun ends in vain reports for itself.
        most = 2 if self.launcher else 1
        one = (0 if ended or not process.returncode else 1) <= len(said) <= most
        if right and one and "Traceback" not in error and "Exception ignored" not in error:
            return str(process.returncode)
        whom = "launcher" if victim == process.pid else "rank"
        return f"{number}: {name.name} to {whom} ended with {process.returncode}: {error}"


def check(gun: Gun) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(gun.shoot, range(SHOTS)))
    print(Counter(outcomes))
    assert [outcome for outcome in outcomes if outcome not in ("0", "75", "130")] == []
    assert {"75", "130"} <= set(outcomes)


@pytest.mark.slow
@pytest.mark.timeout(18000)
def test_simulated_runs(tmp_path: Path) -> None:
    check(Gun(tmp_path, (*COMMAND, *RUN)))


@pytest.mark.slow
@pytest.mark.timeout(18000)
def test_runs_on_gloo(tmp_path: Path) -> None:
    check(Gun(tmp_path, (*COMMAND, *RUN, "network=gloo")))


@pytest.mark.slow
@pytest.mark.timeout(18000)
def test_runs_over_mpi(tmp_path: Path) -> None:
    check(Gun(tmp_path, (*MPIRUN, *RUN, "network=mpi"), FORWARDED))
