"""Settings for saving the state of a run."""

from __future__ import annotations

from dataclasses import dataclass

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import Minutes


@dataclass(frozen=True)
class Checkpoints:
    """When a run saves its state.

    every_steps: save after this many steps of a node; null: never by steps
    every_minutes: save after this many wall-clock minutes; null: never by time
    keep: checkpoints kept on disk; a finished run deletes them all
    keep_last: true: a finished simulation keeps its state from shortly before the end; the same
        command with a larger epochs= continues from this state
    """

    every_steps: int | None = None
    every_minutes: Minutes | None = 30
    keep: int = 2
    keep_last: bool = False

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(
                "checkpoint.every_steps", f"{self.every_steps} must be at least 1 step, or null."
            )
        if self.every_minutes is not None and not 0 < self.every_minutes < float("inf"):
            raise ConfigError(
                "checkpoint.every_minutes",
                f"{self.every_minutes} must be positive and finite, or null.",
            )
        if self.keep < 1:
            raise ConfigError("checkpoint.keep", f"{self.keep} must be at least 1.")
