"""Runs of a study as Slurm jobs, submitted by the launcher of sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from sgp_runner.cli.sweep import compose_first, launcher_of, make_folder
from sgp_runner.config.command_line import parse, quoted
from sgp_runner.config.overrides import configs
from sgp_runner.jobs.job_pool import PoolJob, RunJob, run_all
from sgp_runner.jobs.slurm_jobs import launch
from sgp_runner.jobs.sweep_job import SweepJob
from sgp_runner.studies.arms import RunAll
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.signals import interruptible

LAUNCHER = "hydra/launcher=slurm"


def through_slurm(folder: Path, settings: Sequence[str]) -> RunAll:
    """Return a function that submits the runs that are due and waits for them.

    Re-timed runs are made on this machine, which takes seconds.

    folder: folder of the study; ``slurm`` in it has the logs
    settings: settings of the launcher, such as ``hydra.launcher.timeout_min=60``
    """
    for word in settings:
        if not word.startswith("hydra.launcher."):
            raise ConfigError(
                word, "--sbatch takes settings of the launcher: hydra.launcher.KEY=VALUE."
            )

    def submit(jobs: Iterable[PoolJob]) -> Iterator[tuple[PoolJob, str | None]]:
        due = [job for job in jobs if job.due]
        trained = [job for job in due if isinstance(job, RunJob)]
        yield from run_all(job for job in due if not isinstance(job, RunJob))
        if trained:
            yield from submitted(trained, folder / "slurm", settings)

    return submit


def submitted(
    jobs: Sequence[RunJob], folder: Path, settings: Sequence[str]
) -> Iterator[tuple[PoolJob, str | None]]:
    """Submit an array of jobs and yield each with its error message, or None."""
    with configs(), interruptible():
        lines = [LAUNCHER, f"hydra.sweep.dir={quoted(str(folder))}", *settings]
        composed, directory = compose_first(parse(lines))
        launcher = launcher_of(composed)
        make_folder(directory)
        runs = [SweepJob(job.name, job.experiment) for job in jobs]
        with closing(launch(runs, directory, launcher, {})) as outcomes:
            for number, row in outcomes:
                yield jobs[number], str(row["failed"]) if row.get("failed") else None
