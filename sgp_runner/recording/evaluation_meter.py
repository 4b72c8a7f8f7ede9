"""Real time of the evaluations of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class EvaluationMeter:
    """Adds up the ``seconds`` of the evaluations of models in this process."""

    seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure an evaluation."""
        begun = time.monotonic()
        yield
        self.seconds += time.monotonic() - begun
