"""Start-up time: from the start of a command to its output.

Each command runs in its own process. The last rows of the table are times until the first training
step is in ``metrics.jsonl``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import REPEATS, Result, Table, interleaved

PROGRAM = Path(sys.executable).with_name("sgp-run")
ANSWERS = {
    "sgp-run --help": ("--help",),
    "an unknown key": ("nods=4",),
    "an unknown choice": ("algo=spg",),
    "a value of the wrong kind": ("nodes=four",),
}

# Settings, and a bound on the seconds until the first training step.
FIRST_STEPS: dict[str, tuple[tuple[str, ...], float]] = {
    "the first training step": ((), 2.0),
    "the first training step of 8 real ranks": (("network=gloo", "nodes=8"), 4.0),
}


def measure(repeats: int = REPEATS) -> Iterator[Table]:
    times = interleaved(
        {what: answer(command) for what, command in ANSWERS.items()}
        | {what: first_step(overrides) for what, (overrides, _) in FIRST_STEPS.items()},
        repeats,
    )
    goals = dict.fromkeys(ANSWERS, 1.0) | {what: most for what, (_, most) in FIRST_STEPS.items()}
    yield Table(
        "Until there is an answer",
        tuple(Result(what, "s", values, goals[what]) for what, values in times.items()),
    )


def answer(command: tuple[str, ...]) -> Callable[[], float]:
    def measured() -> float:
        start = time.perf_counter()
        subprocess.run([PROGRAM, *command], check=False, capture_output=True)
        return time.perf_counter() - start

    return measured


def first_step(overrides: tuple[str, ...]) -> Callable[[], float]:
    def measured() -> float:
        with TemporaryDirectory() as folder:
            start = time.perf_counter()
            process = subprocess.Popen(
                [PROGRAM, f"results={folder}", "name=run", *overrides], stdout=subprocess.DEVNULL
            )
            lines = Path(folder, "runs", "run", "metrics.jsonl")
            try:
                while not (lines.exists() and '"train"' in lines.read_text(encoding="utf-8")):
                    if process.poll():
                        raise RuntimeError(f"sgp-run ended with {process.returncode}")
                    time.sleep(0.005)
                return time.perf_counter() - start
            finally:
                process.terminate()  # its ranks end first, so none disturbs the next measurement
                process.wait()

    return measured
