"""Pool of jobs: executes many runs, several at a time, and skips finished runs.

It executes the hundreds of small runs behind studies and tables.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sgp_runner.assembly.execution import sentence_of
from sgp_runner.config.experiment import FORMAT, Experiment
from sgp_runner.jobs.pool import Pool, PoolTask
from sgp_runner.jobs.sweep_job import attempt
from sgp_runner.recording.divergence import FILE as DIVERGED
from sgp_runner.recording.recorder import read_summary
from sgp_runner.utils.cores import KEY as CORES
from sgp_runner.utils.cores import present_cores
from sgp_runner.utils.errors import Stopped
from sgp_runner.utils.memory import free_bytes
from sgp_runner.utils.reading import read_yaml
from sgp_runner.utils.variables import SAFE_PATH, setting


@dataclass(frozen=True)
class RunJob:
    """One run.

    name: name of the folder in ``results``/runs
    overrides: settings of the run, as on the command line
    cores: cores that the run keeps busy
    memory: memory that the run needs, in bytes; 0: unknown
    template: the experiment with these settings; None: composed when the run starts
    """

    name: str
    overrides: tuple[str, ...]
    results: Path
    cores: int = 1
    memory: int = 0
    template: Experiment | None = field(default=None, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        return self.results / "runs" / self.name

    @property
    def command(self) -> str:
        """Return the command that repeats the run, quoted for the shell."""
        return shlex.join(["sgp-run", *self.overrides])

    @property
    def experiment(self) -> Experiment:
        """The run with its name and its folder."""
        from sgp_runner.config.overrides import experiment_of

        prepared = self.template or experiment_of([*self.overrides, "logger=jsonl"])
        resume = "never" if self.replaces else prepared.run.resume
        return prepared.with_values(name=self.name, results=str(self.results), resume=resume)

    @property
    def summary(self) -> Mapping[str, object] | None:
        return read_summary(self.folder)

    @property
    def diverged(self) -> bool:
        """Return whether training has diverged, which is also a result."""
        return (self.folder / DIVERGED).exists()

    @property
    def finished(self) -> bool:
        """Return whether the run has results, from this version or an earlier one."""
        return self.summary is not None or self.diverged

    @property
    def config(self) -> Mapping[str, Any] | None:
        """Return the stored configuration; None if the run has not begun."""
        try:
            config: Mapping[str, Any] = read_yaml(self.folder / "config.yaml")
        except FileNotFoundError:
            return None
        return config

    @property
    def replaces(self) -> bool:
        """Return whether a new run would replace results from another version."""
        config = self.config
        return config is not None and config.get("format") != FORMAT

    @property
    def due(self) -> bool:
        """Return whether the run must start: its results are missing or from another version."""
        return not self.finished or self.replaces

    def perform(self) -> str:
        """Run the job in this process; return its error message, or an empty string."""
        sys.argv = ["sgp-run", *self.overrides]  # recorded in environment.json
        os.environ[CORES] = str(self.cores)
        try:
            results = attempt(self.experiment)
        except Stopped:
            raise
        except Exception as error:  # of settings that cannot be composed
            return sentence_of(error)
        return str(results.get("failed", ""))


class PoolJob(Protocol):
    """Interface of the pool's jobs, such as `RunJob`."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def cores(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def summary(self) -> Mapping[str, object] | None: ...
    @property
    def diverged(self) -> bool: ...
    @property
    def due(self) -> bool: ...
    def perform(self) -> str:
        """Compute the results of the job; return its error message, or an empty string."""


Job = TypeVar("Job", bound=PoolJob)


def run_all(jobs: Iterable[Job], processes: int | None = None) -> Iterator[tuple[Job, str | None]]:
    """Run the jobs that are due; yield each as it finishes, with an error message or None.

    processes: number of runs at a time, with one thread each; None: one per core

    After a signal, all runs save; then this raises Stopped.
    """
    waiting = [job for job in jobs if job.due]
    if not waiting:
        return
    most = processes or present_cores()
    # The server of the pool reads the number of threads when it imports PyTorch.
    with (
        setting(OMP_NUM_THREADS="1", **SAFE_PATH),
        Pool(most, cores=most, memory=free_bytes()) as pool,
    ):
        tasks = (
            PoolTask(number, job.perform, job.folder, job.cores, job.memory)
            for number, job in enumerate(waiting)
        )
        for ended in pool.run_until_stopped(tasks):
            lost = f"its process ended with exit code {ended.exit_code}"
            sentence = lost if ended.result is None else str(ended.result)
            yield waiting[ended.task.number], sentence or None
