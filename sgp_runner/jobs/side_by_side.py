"""Runs of a sweep on this machine, several at a time; each finished run prints a line.

If the output is a file or a pipe, a status line follows after 30 s without output.

Simulations of small models run at the same time, each on one core; their results do not depend on
the number of cores. Large models and real runs use all cores, so they run one after another.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import cast

from sgp_runner.config.run import Run
from sgp_runner.config.size import estimated_bytes
from sgp_runner.console.estimate import Work
from sgp_runner.console.progress import Display, time_left
from sgp_runner.console.summary import outcome
from sgp_runner.jobs.machine import Machine
from sgp_runner.jobs.pool import Ended, Pool, PoolTask
from sgp_runner.jobs.sweep_job import Row, SweepJob
from sgp_runner.recording.loggers.wandb import Wandb
from sgp_runner.utils.cores import KEY
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.signals import SAVED
from sgp_runner.utils.units import duration


def run_on_cores(count: int, job: SweepJob, number: str, verified: bool) -> Row:
    """Run a job in its own process: a simulation on ``count`` cores, a real run on all cores."""
    if job.experiment.run.network.clock == "simulated":
        os.environ[KEY] = str(count)
    return job.perform(number, verified)


def side_by_side(
    jobs: Sequence[SweepJob], machine: Machine, most: int, logs: Path
) -> Iterator[tuple[int, Row]]:
    """Run at most ``most`` jobs at a time and yield the number and row of each as it finishes.

    logs: folder for the output of the jobs, one file each

    After a signal, all jobs save; then this raises Stopped.
    """
    runs, total = [job.experiment.run for job in jobs], len(jobs)
    verified: set[str] = set()  # what the calls of ranks depend on, of finished runs
    with Pool(most, machine.cores, machine.memory, imports_of(runs)) as pool:
        progress = ProgressLines(jobs, pool)

        def tasks() -> Iterator[PoolTask]:
            for number, (job, run) in enumerate(zip(jobs, runs, strict=True)):
                progress.begin(number)
                cores, is_verified = machine.cores_for(run), run.calls in verified
                yield PoolTask(
                    number,
                    partial(run_on_cores, cores, job, f"[{number + 1}/{total}]", is_verified),
                    lock_key=job.experiment.directory,
                    cores=cores,
                    memory=estimated_bytes(run),
                    log=logs / f"{number + 1}.log",
                )

        progress.display.start()
        try:
            for ended in pool.run_until_stopped(tasks(), total):
                number = ended.task.number
                row = row_of(ended, jobs[number])
                if not row.get("failed"):
                    verified.add(runs[number].calls)
                progress.end(number, row, ended.seconds)
                yield number, row
        finally:
            progress.display.stop()


def imports_of(runs: Sequence[Run]) -> list[str]:
    """Return the modules besides PyTorch that the runs import, except those of plug-ins."""
    modules = dict.fromkeys(module for run in runs for module in modules_of(run))
    wandb = ["wandb"] if any(isinstance(run.logger, Wandb) for run in runs) else []
    return [__name__, *(name for name in modules if name.startswith("sgp_runner.")), *wandb]


def modules_of(part: object) -> Iterator[str]:
    """Yield the modules that define a component of a run and its inner components."""
    if is_dataclass(part):
        yield type(part).__module__
        for field in fields(part):
            yield from modules_of(getattr(part, field.name))


def row_of(ended: Ended, job: SweepJob) -> Row:
    """Return the row of a job whose process has ended, even without a result."""
    if ended.result is not None:
        return cast(Row, ended.result)
    code = ended.exit_code or 0
    how = (
        "was stopped by a signal; run the same command again to resume it"
        if code == SAVED
        else f"was killed by {signal.Signals(-code).name}; is there too little memory?"
        if code < 0
        else f"ended with exit code {code}"
    )
    return job.failed_row(f"its process {how} (its output is in {ended.task.log})")


class ProgressLines:
    """Prints a line for each finished job, and shows the running jobs and the remaining time."""

    def __init__(self, jobs: Sequence[SweepJob], pool: Pool) -> None:
        self.jobs, self.total, self.pool, self.ended = jobs, len(jobs), pool, 0
        self.finished_before: set[int] = set()
        self.seconds: list[float] = []
        self.display = Display(self.status)

    def begin(self, number: int) -> None:
        with suppress(ConfigError):
            if self.jobs[number].row_if_done() is not None:
                self.finished_before.add(number)

    def end(self, number: int, row: Row, seconds: float) -> None:
        self.ended += 1
        took = "finished before"
        if number not in self.finished_before:
            self.seconds.append(seconds)
            took = duration(seconds)
        line = f"[{self.ended}/{self.total}] {self.jobs[number].title}  {outcome(row)} · {took}"
        self.display.say(" · ".join(filter(None, (line, time_left(self.seconds_left())))))

    def status(self) -> tuple[Work, str, float]:
        running = " · ".join(self.jobs[task.number].title for task in self.pool.running)
        what = running and f"running: {running}"
        return Work(self.ended, self.total, "run"), what, self.seconds_left()

    def seconds_left(self) -> float:
        """Return the remaining time, estimated from the finished jobs; 0 if unknown."""
        left = self.total - self.ended
        if not self.seconds or not left:
            return 0.0
        return fmean(self.seconds) * left / min(self.pool.most, left)
