"""Who moves the bytes: ``sim`` in simulated time, ``gloo`` between real processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from sgp_runner.run import Experiment, Run


class Network(Protocol):
    """A choice of the group ``network``."""

    @property
    def name(self) -> str: ...
    @property
    def clock(self) -> Literal["simulated", "wall"]: ...  # of the times that are recorded
    def check(self, run: Run) -> None: ...  # ConfigError for what this network cannot do
    def execute(self, experiment: Experiment) -> dict[str, object] | None: ...


def launched_rank() -> int | None:
    """This process's rank if a launcher such as torchrun has started it, else None."""
    return int(os.environ["RANK"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else None
