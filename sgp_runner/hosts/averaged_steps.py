"""Optimizer that steps with an averager, and saved state of each rank, for all adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sgp_runner.api.averager import Averager
from sgp_runner.utils.errors import ConfigError, LostConnection
from sgp_runner.utils.waits import interruption


class AveragedSteps:
    """The optimizer of an averager, with the averager's `step`."""

    def __init__(self, averager: Averager) -> None:
        self.averager = averager

    def __getattr__(self, name: str) -> Any:
        return getattr(self.averager.optimizer, name)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the gradients that ``closure`` computes, and return its loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.averager.step()
        return loss


def lost_connection(error: BaseException) -> Exception | None:
    """Return the error message if a collective of the library lost a rank; else None.

    Ranks that wait for a hanging rank lose each other when they exit.
    """
    if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
        late = "has waited for another rank for longer than its process group allows"
        what = late if "imed out" in str(error) else "lost its connection to another rank"
        return interruption() or LostConnection(f"rank {dist.get_rank()} {what}")
    return None


def refuse_scaler(scaler: object) -> None:
    """Raise ConfigError for a loop in fp16, whose gradient scaler bypasses the averager."""
    if scaler is not None:
        raise ConfigError(
            "mixed_precision",
            "the gradient scaler of fp16 bypasses the averager: use bf16.",
        )


def state_path(folder: Path, rank: int) -> Path:
    return folder / f"averager_{rank}.pt"


def save_rank(averager: Averager, folder: Path) -> None:
    """Save the state of this rank into ``folder``; all ranks must call this together."""
    state = averager.state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    path = state_path(folder, averager.rank)
    torch.save(state, path.with_suffix(".draft"))
    path.with_suffix(".draft").replace(path)


def load_rank(averager: Averager, folder: Path) -> None:
    """Continue from the state of this rank in ``folder``. Raises ConfigError if there is none."""
    path = state_path(folder, averager.rank)
    if not path.is_file():
        raise ConfigError(
            "state",
            f"there is no {path}: resume from a checkpoint that {averager.size} ranks saved "
            "during training.",
        )
    averager.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
