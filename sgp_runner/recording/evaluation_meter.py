"""Wall-clock time of the evaluations of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class EvaluationMeter:
    """Total ``seconds`` of model evaluations in this process."""

    seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of an evaluation in the context."""
        begun = time.monotonic()
        yield
        self.seconds += time.monotonic() - begun
