"""Jobs of a sweep with ``hydra/launcher=slurm``, read from the files that submitit writes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from submitit import SlurmJob


class NotSubmitted(RuntimeError):
    """Slurm did not take a job."""


def submissions(sweep_dir: Path) -> set[Path]:
    """Return the file of each submitted job, including jobs of earlier sweeps in this folder."""
    return set(sweep_dir.glob("slurm/*/*_submitted.pkl"))


def jobs(paths: set[Path]) -> list[SlurmJob[Any]]:
    """Return the jobs of submission files, in the order of the sweep."""
    if not paths:
        return []
    from submitit import SlurmJob

    submitted: list[SlurmJob[Any]] = [
        SlurmJob(path.parent, path.name.removesuffix("_submitted.pkl")) for path in paths
    ]
    return sorted(submitted, key=lambda job: [int(part) for part in job.job_id.split("_")])


def outcome(job: SlurmJob[Any]) -> dict[str, object]:
    """Wait for the job and return its row; without a result, ``failed`` has the reason."""
    try:
        row: dict[str, object] = job.results()[0].return_value
        return row
    except Exception:
        log = job.paths.folder
        return {"failed": f"Slurm job {job.job_id} ended without a result; its log is in {log}"}


def requeue() -> None:
    """Requeue this Slurm job, whose run has saved. Return only if the job is not requeued."""
    if os.environ.get("SUBMITIT_EXECUTOR") != "slurm":
        return
    ask = ["squeue", "--noheader", "--format=%T", "--jobs", os.environ["SLURM_JOB_ID"]]
    state = subprocess.run(ask, check=False, capture_output=True, text=True).stdout.strip()
    if state == "RUNNING":  # a cancelled job must not be requeued
        # On rank 0 submitit handles this signal, requeues and exits; the other ranks end with it.
        signal.raise_signal(signal.SIGUSR2)
        time.sleep(60)


def cancel(paths: set[Path]) -> None:
    """Cancel the jobs that have not ended."""
    if arrays := {path.name.partition("_")[0] for path in paths}:
        subprocess.run(["scancel", "--quiet", *sorted(arrays)], check=False)
