#!/usr/bin/env python
"""Small runs of every algorithm, to verify that a refactoring does not change any record.

    scripts/golden.py FOLDER            run all: simulated, on gloo and over MPI; about five minutes
    scripts/golden.py BEFORE AFTER      compare two such folders; exit code 1 if they differ

The records of simulated runs must be equal to the last bit. The records of real synchronous runs
must be equal to 1e-10, except for measured times.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from sgp_runner.config.experiment import flat
from sgp_runner.jobs.job_pool import RunJob, run_all
from sgp_runner.recording.recorder import metrics_path, read_lines
from sgp_runner.recording.throughput import RATES

SIMULATED = (
    "model=mlp",
    "nodes=4",
    "batch_size=32",
    "epochs=2",
    "log_every=1",
    "cluster.compute_time=log_normal",
)
SLOW = ("cluster.bandwidth=20e6", "cluster.latency_seconds=0.01", "cluster.compute_time.cv=0.5")
REAL = ("dtype=float64", "model=resnet8", "nodes=4", "batch_size=8", "epochs=0.18", "log_every=1")
SYNCHRONOUS = {
    "ar_sgd": ("algo=ar_sgd",),
    "ar_sgd-parameters": ("algo=ar_sgd", "algo.average=parameters"),
    "d_psgd": ("algo=d_psgd",),
    "d_psgd-adapt": ("algo=d_psgd", "algo.order=adapt_then_combine", "algo.topology=torus"),
    "sgp": ("algo=sgp",),
    "osgp-0": ("algo=osgp", "algo.tau=0"),
    "osgp-0-released": ("algo=osgp", "algo.tau=0", "algo.layout=released"),
    "slowmo": ("algo=slowmo", "algo.tau=3"),
    "slowmo-local": ("algo=slowmo", "algo.base=local_sgd", "algo.tau=3", "algo.buffers=average"),
    "local_sgd": ("algo=local_sgd", "algo.tau=3"),
    "pipe_sgd": ("algo=pipe_sgd",),
    "pipe_sgd-quantize8": ("algo=pipe_sgd", "algo.compression=quantize8"),
    "hybrid": ("algo=hybrid", "algo.switch_epoch=0.1"),
    "ps_sgd": ("algo=ps_sgd",),
}
OTHERS = {
    "ad_psgd": ("algo=ad_psgd", "faults=slow_node"),
    "ad_psgd-ring": ("algo=ad_psgd", "algo.topology=ring", "algo.averages_per_gradient=1.5"),
    "osgp-2": ("algo=osgp", "algo.tau=2", "algo.topology.peers=2"),
    "osgp-released": ("algo=osgp", "algo.layout=released", "algo.topology=complete"),
    "osgp-biased": ("algo=osgp", "algo.push_sum_weight=false"),
    "slowmo-osgp": ("algo=slowmo", "algo.base=osgp", "algo.tau=5"),
    "slowmo-inexact": ("algo=slowmo", "algo.exact_average=false", "algo.tau=3"),
    "gap_aware": ("algo=gap_aware",),
    "gap_aware-dana": (
        "algo=gap_aware",
        "algo.momentum=dana",
        "optim.nesterov=false",
        "cluster.hosts.serving_seconds_per_byte=1e-6",
    ),
    "staleness": ("algo=gap_aware", "algo.penalty=staleness"),
    "pipe_sgd-4": ("algo=pipe_sgd", "algo.depth=4", "algo.warmup_epochs=0.5"),
    "adam": ("algo=slowmo", "algo.tau=4", "optim=adam"),
    "faults": (
        "algo=sgp",
        "faults=drop",
        "faults.slow_links={1: 3}",
        "faults.events=[{what: crash, ranks: [2], start: 0.5, end: 1.2}]",
    ),
    "lost": (
        "algo=sgp",
        "on_failure=continue",
        "faults.events=[{what: crash, ranks: [2], start: 0.5}]",
    ),
}
# Numbers of a real run that depend on measured times or on the moment when a message leaves.
UNEQUAL = ("real_s", "time_s", "bytes_sent", *RATES)


def jobs(out: Path) -> Iterator[RunJob]:
    for name, overrides in (SYNCHRONOUS | OTHERS).items():
        yield RunJob(f"sim-{name}", (*SIMULATED, *overrides), out)
        yield RunJob(f"sim-{name}-slow", (*SIMULATED, *overrides, *SLOW), out)
        if name != "lost":  # the events need the whole schedule
            yield RunJob(
                f"timing-{name}",
                (
                    "model=timing_only",
                    "model.sample_steps=null",
                    "nodes=6",
                    "epochs=0.05",
                    "log_every=1",
                    *overrides,
                ),
                out,
            )
    for name, overrides in SYNCHRONOUS.items():
        yield RunJob(f"gloo-{name}", (*REAL, *overrides, "network=gloo"), out)


def run_mpi(out: Path) -> Iterator[tuple[str, int]]:
    """Run each synchronous algorithm over MPI and yield its name and exit code."""
    root = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
    }
    for name, overrides in SYNCHRONOUS.items():
        ranks = str(5 if name == "ps_sgd" else 4)
        command = [
            "mpirun",
            "--oversubscribe",
            "-n",
            ranks,
            sys.executable,
            *("-m", "sgp_runner", *REAL, *overrides, "network=mpi", "logger=jsonl"),
            *(f"results={out}", f"name=mpi-{name}"),
        ]
        done = subprocess.run(command, env={**os.environ, **root}, check=False, capture_output=True)
        yield f"mpi-{name}", done.returncode


def numbers(record: Mapping[str, object] | None, real: bool) -> Iterator[tuple[str, float]]:
    """Yield each number of a record with its name."""
    for name, value in sorted(flat(record or {})):
        if not {*name.split(".")} & {*(UNEQUAL if real else ("real_s",))}:
            every = value if isinstance(value, list) else [value]
            yield from (
                (name, float(element)) for element in every if isinstance(element, int | float)
            )


def difference(before: Path, after: Path) -> str | None:
    """Describe the first difference between the records of two runs, or return None."""
    if not all(metrics_path(folder, 0).exists() for folder in (before, after)):
        return "one of the runs has no records"
    real = not before.name.startswith(("sim", "timing"))
    for rank in range(8):
        both = (read_lines(metrics_path(folder, rank)) for folder in (before, after))
        for line, (a, b) in enumerate(zip_longest(*both), start=1):
            ours, theirs = list(numbers(a, real)), list(numbers(b, real))
            if [name for name, _ in ours] != [name for name, _ in theirs]:
                return f"rank {rank}, record {line}: the recorded quantities differ"
            for (name, x), (_, y) in zip(ours, theirs, strict=True):
                if x != y and not (real and abs(x - y) <= 1e-10 * max(1.0, abs(x))):
                    return f"rank {rank}, record {line}: {name} is {x!r} before and {y!r} after"
    return None


def compare(before: Path, after: Path) -> int:
    names = sorted(
        {path.name for folder in (before, after) for path in (folder / "runs").iterdir()}
    )
    different = {name: difference(before / "runs" / name, after / "runs" / name) for name in names}
    for name, what in different.items():
        if what is not None:
            print(f"{name}: {what}")
    failed = sum(what is not None for what in different.values())
    print(f"{len(names)} runs, {failed} differ")
    return 1 if failed else 0


def main(folders: list[str]) -> int:
    if len(folders) == 2:
        return compare(Path(folders[0]), Path(folders[1]))
    if len(folders) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(folders[0])
    failed = 0
    for job, error in run_all(jobs(out), processes=1):
        print(f"{job.name}: {error or 'done'}", flush=True)
        failed += error is not None
    for name, code in run_mpi(out):
        print(f"{name}: {f'exit code {code}' if code else 'done'}", flush=True)
        failed += code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
