"""Settings for saving the state of a run."""

from __future__ import annotations

from dataclasses import dataclass

from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.units import Minutes


@dataclass(frozen=True)
class Checkpoints:
    """When a run saves its state.

    every_steps: steps of a node between checkpoints; null: steps trigger no checkpoint
    every_minutes: wall-clock minutes between checkpoints; null: time triggers no checkpoint
    keep: number of checkpoints on disk; a finished run deletes all of them
    keep_last: true: a finished simulation keeps a checkpoint from shortly before its end, so that
        the same command with a larger epochs= can continue from it
    """

    every_steps: int | None = None
    every_minutes: Minutes | None = 30
    keep: int = 2
    keep_last: bool = False

    def __post_init__(self) -> None:
        check_least(1, "checkpoint", self, "every_steps", "keep")
        if self.every_minutes is not None and not 0 < self.every_minutes < float("inf"):
            raise ConfigError(
                "checkpoint.every_minutes",
                f"{self.every_minutes} must be positive and finite, or null.",
            )
