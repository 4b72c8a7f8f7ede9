"""Detection of divergence, and ``diverged.json``, which replaces the summary of a diverged run.

A worker has diverged if its loss or a parameter is not finite, or if its loss exceeds `EXPLODED`
times its first recorded loss (or `EXPLODED`, if that loss was below 1). The check runs when a
worker writes a record (which waits for the device anyway) and before parameters are saved.
Checkpoints therefore hold only finite values. A vector that no codec can encode counts as
divergence too (`sgp_runner.core.codecs`); on a GPU, the next record checks for it.
"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path

from sgp_runner.config.experiment import Experiment
from sgp_runner.config.run import Run
from sgp_runner.core.worker import Worker
from sgp_runner.recording.checkpoint import valid
from sgp_runner.utils.errors import Diverged, DivergedBefore
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.reading import read_json

EXPLODED = 1e4
FILE = "diverged.json"


def check_parameters(worker: Worker) -> None:
    """Raise Diverged if a message or a parameter is not finite. This waits for the device.

    The parameters of a timing study are not checked.
    """
    worker.check_now()
    if worker.has_gradients and worker.params.numel():
        least, most = worker.params.aminmax()
        if not isfinite(float(most.maximum(-least))):
            raise Diverged(worker.rank, worker.step, "its parameters are no longer finite")


def check_loss(worker: Worker, loss: float, first: float) -> None:
    """Raise Diverged if ``loss`` is not finite, or far above the worker's ``first`` loss."""
    if not isfinite(loss):
        raise Diverged(worker.rank, worker.step, f"its loss is {loss}")
    if loss > EXPLODED * max(first, 1.0):
        raise Diverged(
            worker.rank, worker.step, f"its loss is {loss:.3g}, after {first:.3g} at the start"
        )


def record_divergence(experiment: Experiment, error: Diverged) -> Diverged:
    """Write ``diverged.json``; return the error, extended by the last checkpoint and advice."""
    newest = next(valid(experiment.checkpoints, experiment.digest), None)
    left = (
        f"the last good checkpoint is {newest}"
        if newest is not None
        else "there is no earlier checkpoint"
    )
    advice = f"; {left}; {cure(experiment.run)}."
    word = {"rank": error.rank, "step": error.step, "what": error.what, "advice": advice}
    replace_file(experiment.directory / FILE, json.dumps(word, indent=2) + "\n")
    return Diverged(error.rank, error.step, error.what, advice)


def cure(run: Run) -> str:
    """Return advice for a run that diverged: settings of the run to change."""
    cures = [f"lower optim.lr, which is {run.optim.lr:g}"]
    if hasattr(run.optim.schedule, "warmup_epochs"):
        cures.append("raise optim.schedule.warmup_epochs")
    if run.algo.if_diverged:
        cures.append(f"raise {' or '.join(run.algo.if_diverged)}")
    return ", or ".join(cures)


def refuse_to_repeat(run_dir: Path) -> None:
    """Raise DivergedBefore if the run in this folder has diverged, as a repetition would too."""
    try:
        word = read_json(run_dir / FILE)
        before = int(word["rank"]), int(word["step"]), str(word["what"]), str(word["advice"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    raise DivergedBefore(*before[:3], f"{before[3]} It is not repeated (resume=never does).")
