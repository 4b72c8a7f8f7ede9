"""Real time of the evaluations of a run, which its forecast counts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sgp_runner.config.run import Run


class EvaluationMeter:
    """Measures the evaluations of models in this process.

    total: number of evaluations in the run, or in the rest of a resumed run. count: number of those
        that have ended
    """

    def __init__(self, total: int = 0) -> None:
        self.total, self.count = total, 0
        self.ended = 0.0  # seconds of the evaluations that have ended
        self.begun: float | None = None

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure an evaluation."""
        self.begun = time.monotonic()
        try:
            yield
        finally:
            begun, self.begun = self.begun, None
            self.ended += time.monotonic() - begun
            self.count += 1

    def seconds(self, now: float) -> float:
        """Return the seconds of evaluation until ``now``, by `time.monotonic`."""
        begun = self.begun
        return self.ended if begun is None else self.ended + now - begun

    @property
    def untimed(self) -> int:
        """The number of evaluations if none has ended, so that their time is unknown."""
        return 0 if self.count else self.total

    @property
    def left(self) -> float:
        """The estimated seconds of the remaining evaluations; 0 if no evaluation has ended yet."""
        return self.ended / self.count * max(0, self.total - self.count) if self.count else 0.0


def number_of_evaluations(run: Run) -> int:
    """Return the number of models that a process evaluates, the last ones included."""
    if not run.model.trains:
        return 0
    times = max(1, round(run.epochs / run.eval_every))
    simulated = run.network.clock == "simulated"
    return times * (1 + (run.nodes if run.eval_workers else 0) if simulated else 1)
