"""Runs as jobs of a Slurm array, through submitit (``hydra/launcher=slurm``)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgp_runner.jobs.sweep_job import Row, SweepJob
from sgp_runner.utils.errors import Stopped
from sgp_runner.utils.messages import logger, show_messages
from sgp_runner.utils.signals import signal_state
from sgp_runner.utils.units import counted

if TYPE_CHECKING:
    from submitit import Job

LAUNCHER = "sgp_runner.jobs.slurm_jobs.launch"  # ``_target_`` of configs/hydra/launcher/slurm.yaml


class NotSubmitted(RuntimeError):
    """Raised when Slurm rejects the jobs."""


@dataclass(frozen=True)
class SlurmTask:
    """Run a job of a sweep on Slurm, and again if Slurm requeues it.

    number: number of the job among all jobs, as text
    variables: environment variables
    """

    job: SweepJob
    number: str
    variables: Mapping[str, str]

    def __call__(self) -> Row:
        show_messages()
        os.environ.update(self.variables)
        try:
            return self.job.perform(self.number)
        except Stopped:
            requeue()
            raise

    def checkpoint(self) -> object:
        """Return the submission of the requeued job; submitit calls this."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def launch(
    jobs: Sequence[SweepJob],
    directory: Path,
    settings: Mapping[str, Any],
    variables: Mapping[str, str],
) -> Generator[tuple[int, Row]]:
    """Submit the jobs, wait for them, and yield the number and row of each in order.

    directory: folder of the sweep
    settings: settings under ``hydra.launcher``
    variables: environment variables of the jobs

    Raises NotSubmitted. The jobs are cancelled after any other error, such as Ctrl-C.
    """
    logger.info(f"{counted(len(jobs), 'run')}; the sweep is in {directory}")
    with ThreadPoolExecutor(1) as thread:  # which Ctrl-C does not interrupt
        submission = thread.submit(submit, jobs, settings, variables)
        try:
            for number, slurm_job in enumerate(submission.result()):
                yield number, row_of(slurm_job, jobs[number])
        except BaseException:
            arrays = {job.job_id.partition("_")[0] for job in submission.result()}
            subprocess.run(["scancel", "--quiet", *arrays], check=False)
            raise


def submit(
    jobs: Sequence[SweepJob], settings: Mapping[str, Any], variables: Mapping[str, str]
) -> Sequence[Job[Row]]:
    """Submit an array of jobs. Raises NotSubmitted with Slurm's reason."""
    from submitit import AutoExecutor

    names = settings.keys() - {"_target_", "submitit_folder", "max_num_timeout"}
    tasks = [
        SlurmTask(job, f"[{number}/{len(jobs)}]", variables)
        for number, job in enumerate(jobs, start=1)
    ]
    try:
        executor = AutoExecutor(
            settings["submitit_folder"],
            cluster="slurm",
            slurm_max_num_timeout=settings["max_num_timeout"],
        )
        executor.update_parameters(**{f"slurm_{name}": settings[name] for name in names})
        submitted: Sequence[Job[Row]] = executor.submit_array(tasks)
    except Exception as error:
        reason = re.sub(r"(?s).*^sbatch: \w+: ", "", str(error).strip(), flags=re.M)
        raise NotSubmitted(f"Slurm rejected the jobs ({reason}).") from error
    return submitted


def row_of(slurm_job: Job[Row], job: SweepJob) -> Row:
    """Wait for a job and return its row."""
    try:
        return slurm_job.results()[0]
    except Exception:
        if signal_state.interrupted:  # a library has replaced KeyboardInterrupt
            raise
        log = slurm_job.paths.folder
        # A job that lost a rank has failed for Slurm, but the run may have finished.
        return job.row_if_done() or job.failed_row(
            f"Slurm job {slurm_job.job_id} ended without a result; its log is in {log}"
        )


def requeue() -> None:
    """Requeue this Slurm job, whose run has saved. Returns only if the job is not requeued."""
    ask = ["squeue", "--noheader", "--format=%T", "--jobs", os.environ["SLURM_JOB_ID"]]
    state = subprocess.run(ask, check=False, capture_output=True, text=True).stdout.strip()
    if state == "RUNNING":  # a cancelled job must not be requeued
        # On rank 0 submitit handles this signal, requeues and exits; the other ranks end with it.
        signal.raise_signal(signal.SIGUSR2)
        time.sleep(60)
