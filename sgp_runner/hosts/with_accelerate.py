"""An `Averager` for training loops of Hugging Face Accelerate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sgp_runner.utils.extras import require

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
except ModuleNotFoundError:
    require("accelerate", "accelerate", "accelerate")
    raise
from torch import nn

from sgp_runner.algorithms import Algorithm
from sgp_runner.api.averager import Averager
from sgp_runner.hosts.averaged_steps import AveragedSteps, load_rank, refuse_scaler, save_rank
from sgp_runner.utils.errors import ConfigError


class ResumedSteps(AveragedSteps):
    """An optimizer that is restored from a checkpoint's folder instead of its file."""

    folder: Path

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_rank(self.averager, self.folder)


def averager_of(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: AcceleratedOptimizer,
    algo: str | Algorithm,
    *,
    steps: int | None = None,
    **settings: Any,
) -> Averager:
    """Make the optimizer's `step` take steps of an algorithm, and return the averager.

    model, optimizer: as returned by ``accelerator.prepare``
    algo, steps, settings: those of `Averager`

    ``accelerator.save_state`` saves the mean model and the state of each rank, and
    ``accelerator.load_state`` continues from there; call it before the first step. Raises
    ConfigError for invalid arguments.
    """
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise ConfigError("optimizer", "pass the optimizer that accelerator.prepare has returned.")
    refuse_scaler(accelerator.scaler)
    averager = Averager(algo, model, optimizer.optimizer, steps=steps, **settings)
    optimizer.optimizer = resumed = ResumedSteps(averager)

    def save(models: list[nn.Module], weights: list[dict[str, Any]], folder: str) -> None:
        save_rank(averager, Path(folder))
        with averager.average():
            state = averager.model.state_dict()
            weights[place(models)] = {name: value.clone() for name, value in state.items()}

    def load(models: list[nn.Module], folder: str) -> None:
        del models[place(models)]  # its parameters come with the state of this rank
        resumed.folder = Path(folder)

    def place(models: list[nn.Module]) -> int:
        return next(i for i, item in enumerate(models) if item in (model, averager.model))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    return averager
