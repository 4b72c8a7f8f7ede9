"""The jobs of a sweep with ``hydra/launcher=slurm``, found by what submitit leaves in the sweep's
folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from submitit import SlurmJob


def submissions(sweep_dir: Path) -> set[Path]:
    """A file for each job, of earlier sweeps in the same folder too."""
    return set(sweep_dir.glob("slurm/*/*_submitted.pkl"))


def jobs(paths: set[Path]) -> list[SlurmJob[Any]]:
    """In the order of the sweep."""
    if not paths:
        return []
    from submitit import SlurmJob

    found: list[SlurmJob[Any]] = [
        SlurmJob(path.parent, path.name.removesuffix("_submitted.pkl")) for path in paths
    ]
    return sorted(found, key=lambda job: [int(part) for part in job.job_id.split("_")])


def outcome(job: SlurmJob[Any]) -> dict[str, object]:
    """What the job's task has returned, once it has ended; ``failed`` if it was lost."""
    try:
        row: dict[str, object] = job.results()[0].return_value
        return row
    except Exception:
        return {
            "failed": f"Slurm's job {job.job_id} ended without a result; its log is in {job.paths.folder}"
        }


def requeue() -> None:
    """Back into the queue with this job of a sweep, whose run has saved where it is; only returns
    if that cannot be done.
    """
    if os.environ.get("SUBMITIT_EXECUTOR") != "slurm":
        return
    ask = ["squeue", "--noheader", "--format=%T", "--jobs", os.environ["SLURM_JOB_ID"]]
    state = subprocess.run(ask, check=False, capture_output=True, text=True).stdout.strip()
    if state == "RUNNING":  # one that was cancelled must not come back
        signal.raise_signal(
            signal.SIGUSR2
        )  # on the first rank submitit hears this, requeues and exits
        time.sleep(60)  # the others end with it


def cancel(paths: set[Path]) -> None:
    """Take the jobs out of the queue; those that have ended stay as they are."""
    if arrays := {path.name.partition("_")[0] for path in paths}:
        subprocess.run(["scancel", "--quiet", *sorted(arrays)], check=False)
