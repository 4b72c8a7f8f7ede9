"""Pretrained models, which runs with the same data, model and pretraining share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sgp_runner._version import __version__
from sgp_runner.config.experiment import Experiment, digest_of
from sgp_runner.config.plugins.loading import KEY as KEY_OF_PLUGINS
from sgp_runner.core.problem import Problem
from sgp_runner.recording.checkpoint import read
from sgp_runner.utils.errors import CannotWrite, ConfigError
from sgp_runner.utils.files import replacing
from sgp_runner.utils.lock import lock
from sgp_runner.utils.messages import logger
from sgp_runner.utils.units import counted
from sgp_runner.utils.user_code import nearby

if TYPE_CHECKING:
    from torch import Tensor

# Settings that decide a pretrained model, besides the number of samples in a step.
DECIDING = ("model", "data", "optim", "pretrain", "seed", "dtype", "micro_batch", KEY_OF_PLUGINS)
WAIT_SECONDS = 0.1
OF_THE_RUN = ("lr", "lr_reference_batch", "schedule")  # settings of the optimizer that do not


def pretrain(problem: Problem, experiment: Experiment, results: Path | None = None) -> None:
    """Let ``problem`` start from the pretrained model of the run, if the run has one.

    The model is trained unless it is in the folder pretrained of ``results`` or, by default, of the
    run's results. Raises ConfigError if the training diverges or the file is damaged, and
    CannotWrite.
    """
    run = experiment.run
    if not run.pretrain.steps or not run.model.trains:
        return
    key = key_of(experiment, problem.compute.device)
    path = (results or Path(run.results)) / f"pretrained/{key}.pt"
    batch, steps = run.nodes * run.batch_size, counted(run.pretrain.steps, "step")
    with turn_at(path):
        if not path.exists():
            logger.info(f"Pretraining: {steps} of {counted(batch, 'sample')}.")
            save(path, *run.pretrain.train(problem, run.optim, batch))
    try:
        saved = read(path, problem.compute.device)
        problem.flat.start_from(saved["params"], saved["buffers"])
    except (OSError, ValueError, LookupError) as error:
        raise ConfigError(
            "pretrain", f"{nearby(path)} is damaged ({error}): delete this file."
        ) from error


def key_of(experiment: Experiment, device: str) -> str:
    """Return a hash of everything that determines the pretrained model."""
    import torch

    run = experiment.run
    decide: dict[str, Any] = {
        key: value for key, value in experiment.settings.items() if key in DECIDING
    }
    decide["optim"] = {key: decide["optim"][key] for key in {*decide["optim"]} - {*OF_THE_RUN}}
    decide |= {"batch": run.nodes * run.batch_size, "device": device}
    return digest_of(decide | {"versions": [__version__, torch.__version__]})[:16]


@contextmanager
def turn_at(path: Path) -> Iterator[None]:
    """Wait for other processes on this machine that create the same file. Raises CannotWrite."""
    waits_at = path.with_suffix(".lock")
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = lock(waits_at)
            break
        except BlockingIOError:
            time.sleep(WAIT_SECONDS)
        except OSError as error:
            raise CannotWrite(path.parent, error) from error
    try:
        yield
    finally:
        waits_at.unlink(missing_ok=True)
        os.close(descriptor)


def save(path: Path, params: Tensor, buffers: list[Tensor]) -> None:
    """Write a model atomically, because other machines may write the same file."""
    import torch

    if not params.isfinite().all():
        raise ConfigError("pretrain.lr", "the pretraining diverged: use a smaller learning rate.")
    with replacing(path, f".{uuid4().hex}") as file:  # a path would become part of the contents
        torch.save({"params": params, "buffers": buffers}, file)
