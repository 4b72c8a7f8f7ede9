"""An `Averager` as a Lightning strategy."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sgp_runner.utils.extras import require

try:
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.trainer.states import TrainerFn
except ModuleNotFoundError:
    require("lightning", "lightning", "lightning")
    raise

from sgp_runner.algorithms import Algorithm
from sgp_runner.api.averager import Averager
from sgp_runner.hosts.averaged_steps import (
    AveragedSteps,
    load_rank,
    lost_connection,
    refuse_scaler,
    save_rank,
    state_path,
)
from sgp_runner.utils.errors import ConfigError


class AveragingStrategy(DDPStrategy):
    """Strategy that takes steps of an algorithm: ``Trainer(strategy=AveragingStrategy("sgp"))``.

    algo, settings: those of `Averager`
    ddp: further arguments of `DDPStrategy`

    Evaluations and checkpoints use the mean model. Next to the checkpoint FILE, the folder
    FILE.ranks has the state of each rank, from which ``trainer.fit(ckpt_path=FILE)`` continues.
    `fit` raises ConfigError for invalid arguments.
    """

    def __init__(
        self, algo: str | Algorithm, *, ddp: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        super().__init__(**(ddp or {}))
        self.algo, self.settings = algo, settings
        self.averager: Averager | None = None
        self.evaluation = ExitStack()  # entered while the model is the mean of all ranks
        self.evaluates = False
        self.resumed = Path()

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if len(self.optimizers) != 1:
            raise ConfigError("optimizer", f"there are {len(self.optimizers)}: return one.")
        refuse_scaler(getattr(self.precision_plugin, "scaler", None))
        steps, model = trainer.estimated_stepping_batches, self.model
        assert model is not None
        self.averager = Averager(
            self.algo,
            model,
            self.optimizers[0],
            steps=int(steps) if math.isfinite(steps) else None,
            **self.settings,
        )

    def optimizer_step(self, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        assert self.averager is not None
        steps: Any = AveragedSteps(self.averager)
        return super().optimizer_step(steps, *arguments, **options)

    def on_validation_start(self) -> None:
        if self.averager is not None:
            self.evaluation.enter_context(self.averager.average())
            self.evaluates = True

    def on_validation_end(self) -> None:
        self.evaluation.close()
        self.evaluates = False

    def on_train_end(self) -> None:
        assert self.averager is not None
        self.averager.finish()

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        if (lost := lost_connection(exception)) is not None:
            raise lost from exception

    def lightning_module_state_dict(self) -> dict[str, Any]:
        if self.averager is None:
            return super().lightning_module_state_dict()
        with self.averager.average():
            state = super().lightning_module_state_dict()
            return {name: value.clone() for name, value in state.items()}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, *options: Any, **named: Any
    ) -> None:
        super().save_checkpoint(checkpoint, filepath, *options, **named)
        if self.averager is None or self.averager.runtime.ended:
            return
        evaluates = self.evaluates
        self.on_validation_end()  # the state has the buffers of this rank
        save_rank(self.averager, ranks_of(filepath))
        if evaluates:
            self.on_validation_start()

    def remove_checkpoint(self, filepath: Any) -> None:
        super().remove_checkpoint(filepath)
        folder = ranks_of(filepath)
        state_path(folder, self.global_rank).unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    def load_checkpoint(self, checkpoint_path: Any, *options: Any, **named: Any) -> dict[str, Any]:
        self.resumed = ranks_of(checkpoint_path)
        return super().load_checkpoint(checkpoint_path, *options, **named)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        assert self.averager is not None
        load_rank(self.averager, self.resumed)


def ranks_of(checkpoint: Any) -> Path:
    """Return the folder with the states of all ranks, next to a checkpoint."""
    return Path(f"{checkpoint}.ranks")
