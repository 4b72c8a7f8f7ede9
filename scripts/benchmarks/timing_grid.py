"""A grid of timing studies: one sweep, from the start of its command to the page of its report.

Ten methods on eight numbers of nodes and twelve rates of the links are 960 runs. Each covers 200
steps, which are two or more outer steps of every method with outer steps. Compute times are
constant, so that steps of synchronous methods repeat. Times are wall times on all cores.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, Result, Table

RATES = (
    *("100Mbit/s", "200Mbit/s", "500Mbit/s", "1Gbit/s", "2Gbit/s", "5Gbit/s", "10Gbit/s"),
    *("20Gbit/s", "40Gbit/s", "100Gbit/s", "200Gbit/s", "400Gbit/s"),
)
GRID = (
    "algo=ar_sgd,d_psgd,sgp,osgp,slowmo,local_sgd,diloco,streaming_diloco,noloco",
    "algo.diloco.period=30,100",
    "nodes=2,4,8,16,32,64,128,256",
    f"cluster.bandwidth={','.join(RATES)}",
)
STUDY = (
    *("model=timing_only", "model.sample_steps=200", "model.periods=true", "epochs=90"),
    *("cluster.compute_time=constant", "log_every=200", "logger=jsonl"),
)
GOAL = Goal("at most", 120)


def measure(repeats: int = 1, grid: Sequence[str] = GRID) -> Iterator[Table]:
    turns = [seconds_of(grid) for _ in range(repeats)]
    results = [
        Result(what, "s", tuple(turn[what] for turn in turns)) for what in turns[0] if what != "all"
    ]
    whole = Result("the whole command", "s", tuple(turn["all"] for turn in turns), GOAL)
    yield Table("Grid of timing studies", (*results, whole))


def seconds_of(grid: Sequence[str]) -> dict[str, float]:
    """Run the sweep and return the seconds of its check, its runs and its report."""
    with TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "sgp_runner", "-m", *STUDY, *grid, f"results={folder}"]
        begin = time.monotonic()
        checked = last = begin
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as sweep:
            assert sweep.stdout is not None
            for line in sweep.stdout:
                if "; the sweep is in " in line:
                    checked = time.monotonic()
                if line.startswith("["):
                    last = time.monotonic()
        end = time.monotonic()
    if sweep.returncode:
        raise subprocess.CalledProcessError(sweep.returncode, words)
    return {
        "start, and check of the settings": checked - begin,
        "runs": last - checked,
        "comparison and report": end - last,
        "all": end - begin,
    }
