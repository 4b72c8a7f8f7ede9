"""The consensus distance of D-PSGD and SGP at constant learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from claims.computed import Computed
from claims.evidence import Finding
from claims.recorded import job_of
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.studies.measures import number
from sgp_runner.studies.statistics import Between, mean_of, paired
from sgp_runner.studies.study_tasks import IMAGES

NAMES = {"d_psgd": "D-PSGD", "sgp": "SGP"}
RATES = (0.025, 0.05, 0.1)
SEEDS = range(1, 9)


def computed(results: Path) -> Computed:
    runs = {(algo, rate): jobs(results, algo, rate) for algo in NAMES for rate in RATES}
    return Computed(
        [job for sample in runs.values() for job in sample],
        lambda: [finding for algo in NAMES for finding in find(runs, algo)],
    )


def jobs(results: Path, algo: str, rate: float) -> tuple[RunJob, ...]:
    """Return one run for each seed."""
    overrides = (
        *IMAGES.settings(algo, nodes=16, times=1),
        *("eval_every=1", "eval_workers=true", "optim.schedule.milestones=[]"),
        f"optim.lr={rate:g}",
    )
    name = f"consensus-{algo}-lr{rate:g}"
    return tuple(job_of(results, [*overrides, f"seed={seed}"], f"{name}-s{seed}") for seed in SEEDS)


def distances(job: RunJob) -> list[float]:
    """Return the consensus distance at the end of each epoch."""
    records = read_metrics(job.folder)
    return [record["consensus_distance"] for record in records if record["kind"] == "average"]


def find(runs: dict[tuple[str, float], tuple[RunJob, ...]], algo: str) -> Iterator[Finding]:
    for rate in RATES:
        every = runs[algo, rate]
        what = f"{NAMES[algo]}, learning rate {rate:g}"
        curves = map(distances, every)
        yield Finding(
            "bounded",
            what,
            "logarithm of the last consensus distance over that two epochs before",
            mean_of([math.log(curve[-1] / curve[-3]) for curve in curves]),
            Between(most=math.log(1.25)),
            every,
        )
        averaged, single = (
            [100 * number(job, k) for job in every] for k in ("average", "worker_mean")
        )
        yield Finding(
            "averaged model",
            f"{what}: averaged model minus mean of workers",
            "points of accuracy",
            paired(averaged, single),
            Between(least=-0.1),
            every,
        )
    for small, large in pairwise(RATES):
        logs = [
            [math.log2(distances(job)[-1]) for job in runs[algo, rate]] for rate in (large, small)
        ]
        yield Finding(
            "shrinks with the learning rate",
            f"{NAMES[algo]}, learning rate {large:g} against {small:g}",
            "doublings of the last consensus distance",
            paired(*logs),
            Between(0.5, 1.5),
            (*runs[algo, large], *runs[algo, small]),
            primary=algo == "sgp" and large == RATES[-1],
        )
