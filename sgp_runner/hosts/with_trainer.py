"""An `Averager` in the `Trainer` of Hugging Face Transformers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

from sgp_runner.utils.extras import require

try:
    from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
    from transformers.training_args import TrainingArguments
except ModuleNotFoundError:
    require("trainer", "trainer", "transformers", "accelerate")
    raise

from sgp_runner.algorithms import Algorithm
from sgp_runner.api.averager import Averager
from sgp_runner.hosts.averaged_steps import (
    AveragedSteps,
    load_rank,
    lost_connection,
    refuse_scaler,
    save_rank,
)


class AveragingCallback(TrainerCallback):
    """Callback that takes steps of an algorithm: ``trainer.add_callback(AveragingCallback(...))``.

    trainer: a `transformers.Trainer` or an instance of a subclass
    algo, settings: those of `Averager`

    Evaluations and saved models use the mean model. Checkpoints also have the state of
    each rank, from which ``trainer.train(resume_from_checkpoint=...)`` continues. Each rank
    averages the loss over its own tokens (``average_tokens_across_devices`` is switched off).
    `train` raises ConfigError for invalid arguments.
    """

    def __init__(self, trainer: Any, algo: str | Algorithm, **settings: Any) -> None:
        self.trainer, self.algo, self.settings = trainer, algo, settings
        self.averager: Averager | None = None
        self.folder: Path | None = None  # of the checkpoint from which the training continues
        trainer.args.average_tokens_across_devices = False  # else a gather in each step
        trainer.evaluation_loop = self.on_mean(trainer.evaluation_loop)
        trainer.save_model = self.on_mean(trainer.save_model)
        load = trainer._load_optimizer_and_scheduler

        @wraps(load)
        def load_and_remember(checkpoint: str | None) -> None:
            load(checkpoint)
            self.folder = None if checkpoint is None else Path(checkpoint)

        trainer._load_optimizer_and_scheduler = load_and_remember
        train = trainer.train

        @wraps(train)
        def train_together(*arguments: Any, **options: Any) -> Any:
            try:
                return train(*arguments, **options)
            except RuntimeError as error:
                raise lost_connection(error) or error from error

        trainer.train = train_together

    def on_mean(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Make a method of the trainer run with the mean model."""

        @wraps(method)
        def averaged(*arguments: Any, **options: Any) -> Any:
            with nullcontext() if self.averager is None else self.averager.average():
                return method(*arguments, **options)

        return averaged

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        optimizer = self.trainer.optimizer
        refuse_scaler(self.trainer.accelerator.scaler)
        model = self.trainer.model_wrapped
        self.averager = Averager(
            self.algo, model, optimizer.optimizer, steps=state.max_steps, **self.settings
        )
        optimizer.optimizer = AveragedSteps(self.averager)
        if self.folder is not None:
            load_rank(self.averager, self.folder)
            self.folder = None

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.averager is not None and not args.save_only_model:
            save_rank(self.averager, Path(str(args.output_dir), f"checkpoint-{state.global_step}"))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Load the mean model into the module, unless the trainer has loaded the best one."""
        assert self.averager is not None
        model = self.averager.model
        best = None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            best = {name: value.clone() for name, value in model.state_dict().items()}
        self.averager.finish()
        if best is not None:
            model.load_state_dict(best)
        self.trainer.optimizer.optimizer = self.averager.optimizer
