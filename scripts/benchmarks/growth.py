"""Growth: how the processor time of simulations and reports grows with their work.

An exponent of 1 means that twice the work takes twice the time. It is the slope of the line by
least squares through the logarithms of processor times, less that of the least possible work.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, Result, Table

BIN = Path(sys.executable).parent
AT_MOST = Goal("at most", 1.1)
STUDY = ("model=timing_only", "epochs=4000", "data.size=100000000", "logger=jsonl")
ALGORITHMS = ("sgp", "ad_psgd", "swarm_sgd")
NODES = (64, 256, 1024, 4096)
STEPS = (100, 1000, 10_000)
RUNS = (10, 100, 1000)


def measure(
    nodes: Sequence[int] = NODES, steps: Sequence[int] = STEPS, runs: Sequence[int] = RUNS
) -> Iterator[Table]:
    yield table("Nodes, 16 steps each", {algo: of_nodes(algo) for algo in ALGORITHMS}, nodes)
    yield table("Steps of 16 nodes", {algo: of_steps(algo) for algo in ALGORITHMS}, steps)
    yield table("Runs in a folder", {"sgp-report": of_runs}, runs)


def table(title: str, times: Mapping[str, Callable[[int], float]], sizes: Sequence[int]) -> Table:
    """Return the exponents for ``sizes``; ``times`` return processor seconds."""
    exponents = tuple(
        Result(
            what, "exponent", (exponent(sizes, [time(size) - time(1) for size in sizes]),), AT_MOST
        )
        for what, time in times.items()
    )
    return Table(title, exponents, f"Sizes: {', '.join(map(str, sizes))}.")


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Return ``b`` of the power law ``time = a size^b`` that fits best in logarithms."""
    return linear_regression([log(size) for size in sizes], [log(time) for time in times]).slope


def of_nodes(algo: str) -> Callable[[int], float]:
    return lambda size: study(algo, max(size, 2), 16)


def of_steps(algo: str) -> Callable[[int], float]:
    return lambda size: study(algo, 16, size)


def study(algo: str, nodes: int, steps: int) -> float:
    with TemporaryDirectory() as folder:
        sizes = f"nodes={nodes}", f"model.sample_steps={steps}"
        return processor_seconds("sgp-run", f"results={folder}", f"algo={algo}", *sizes, *STUDY)


def of_runs(count: int) -> float:
    """Return the processor seconds of a report on ``count`` runs."""
    with TemporaryDirectory() as folder:
        seeds = ",".join(map(str, range(1, count + 1)))
        small = "nodes=2", "model.sample_steps=2", f"seed={seeds}"
        processor_seconds("sgp-run", "-m", f"results={folder}", *small, *STUDY)
        return processor_seconds("sgp-report", folder)


def processor_seconds(program: str, *words: str) -> float:
    """Return the processor time, user and system, of a command and its child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([BIN / program, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
