"""Hooks that are called between the steps of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sgp_runner.core.worker import Worker


class StepListener(Protocol):
    """A listener for the start and end of steps; a worker is at rest between two steps."""

    def start_of_step(self, worker: Worker) -> None: ...
    def end_of_step(self, worker: Worker) -> None: ...


class StepHooks:
    """Hooks that call the saver at the start of a step and the recorder at its end, if any."""

    def __init__(self) -> None:
        self.saver: Callable[[Worker], None] | None = None
        self.recorder: Callable[[Worker], None] | None = None

    def start_of_step(self, worker: Worker) -> None:
        if self.saver is not None:
            self.saver(worker)

    def end_of_step(self, worker: Worker) -> None:
        if self.recorder is not None:
            self.recorder(worker)


NULL_LISTENER = StepHooks()
