"""Growth of a command's processor time with the number of nodes, steps and runs.

For sizes n, n r and n r² and a processor time of a + b n^p, the second increase in time is r^p
times the first. Each row shows the exponent p, which is 1 if the work is proportional to the size.
The start-up time a cancels. The processor time is the total over all processes of the command.

From 512 to 4,096 nodes, the same number of node steps of SGP takes 1.5 times as long, because the
objects of more nodes miss the processor's caches: in a profile, ``heappop`` takes 4 times as long.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Result, Table, interleaved
from benchmarks.start_up import PROGRAM

NODES, STEPS, RUNS = (64, 512, 4096), (100, 1000, 10_000), (10, 100, 1000)
ALGORITHMS = ("sgp", "ad_psgd", "ar_sgd")
MOST = 1.1  # exponent
LONG = ("epochs=1000000", "log_every=1000000")  # a schedule of more steps than are simulated
SHORTEST = 0.01  # s, the least increase that counts


def measure(
    repeats: int = 1,
    nodes: Sequence[int] = NODES,
    steps: Sequence[int] = STEPS,
    runs: Sequence[int] = RUNS,
) -> Iterator[Table]:
    with TemporaryDirectory() as folder:
        folders = {count: copies(Path(folder), count) for count in runs}
        rows: dict[str, dict[int, Callable[[], float]]] = {}
        for algo in ALGORITHMS:
            rows[f"nodes, 100 steps of {algo}"] = {n: study(algo, n, 100) for n in nodes}
        rows["steps, 64 nodes of sgp"] = {n: study("sgp", 64, n) for n in steps}
        rows["runs in a report"] = {n: report(folders[n]) for n in runs}
        things = {(row, size): work for row, works in rows.items() for size, work in works.items()}
        times = interleaved(
            {f"{row}: {size}": work for (row, size), work in things.items()}, repeats
        )
    by_row = {row: {size: times[f"{row}: {size}"] for size in works} for row, works in rows.items()}
    yield Table(
        "Processor time",
        tuple(
            Result(f"{row}: {size:,}", "s", values)
            for row, by_size in by_row.items()
            for size, values in by_size.items()
        ),
    )
    exponents = []
    for row, by_size in by_row.items():
        turns = zip(*by_size.values(), strict=True)
        exponents.append(
            Result(row, "exponent", tuple(exponent([*by_size], turn) for turn in turns), MOST)
        )
    yield Table("Exponents", tuple(exponents))


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent of the work for three sizes with equal ratios between them."""
    first, second, third = seconds
    ratio = max(third - second, SHORTEST) / max(second - first, SHORTEST)
    return log(ratio) / log(sizes[1] / sizes[0])


def study(algo: str, nodes: int, steps: int) -> Callable[[], float]:
    overrides = [
        str(PROGRAM),
        "model=timing_only",
        f"algo={algo}",
        f"nodes={nodes}",
        f"model.sample_steps={steps}",
    ]
    return partial(processor_seconds, [*overrides, *LONG, "name=run"])


def report(folder: Path) -> Callable[[], float]:
    program = PROGRAM.with_name("sgp-report")
    out = folder.parent / "out"
    return partial(processor_seconds, [str(program), str(folder), "--out", str(out)])


def processor_seconds(command: Sequence[str]) -> float:
    """Return the processor time of a command, including its child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with TemporaryDirectory() as folder:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def copies(folder: Path, count: int) -> Path:
    """Return a folder with ``count`` runs of one setting that differ only in the seed."""
    first = folder / "runs" / "first"
    if not first.exists():
        overrides = ["model=quadratic", "epochs=2", "nodes=4", "logger=jsonl", "name=first"]
        command = [PROGRAM, *overrides, f"results={folder}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    out = folder / f"of {count}"
    config = (first / "config.yaml").read_text(encoding="utf-8")
    for seed in range(1, count + 1):
        shutil.copytree(first, out / f"run{seed}")
        text = config.replace("\nseed: 1\n", f"\nseed: {seed}\n")
        (out / f"run{seed}" / "config.yaml").write_text(text, encoding="utf-8")
    return out
