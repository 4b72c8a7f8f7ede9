"""A cell: one measured or published time and its simulated counterpart."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from statistics import fmean

from sgp_runner.api.results import Result
from sgp_runner.api.running import run
from sgp_runner.recording.recorder import read_metrics


@dataclass(frozen=True)
class Cell:
    """One time, in seconds.

    what: description in words, one for each column of a table. fitted: whether a constant of the
    model was fitted to this time. left_out: the simulated time after a fit without this time; None
    if no fit used it.
    """

    what: Sequence[str]
    real: float
    simulated: float
    fitted: bool = False
    left_out: float | None = None

    @property
    def error(self) -> float:
        """Error of the simulated time in percent."""
        return 100 * (self.simulated / self.real - 1)

    @property
    def error_left_out(self) -> float:
        """Error in percent of the time predicted by a fit without this cell."""
        return self.error if self.left_out is None else 100 * (self.left_out / self.real - 1)


def mean_and_worst(errors: Iterable[float]) -> tuple[float, float]:
    """Return the mean and the largest absolute value of ``errors``."""
    sizes = [abs(error) for error in errors]
    return fmean(sizes), max(sizes)


def simulated(*words: str, steps: tuple[int, int] | None = None) -> float:
    """Return the simulated seconds of some steps of a timing study.

    steps: the first and the last step of node 0 to include, counted from 0. None: return the mean
    seconds per step
    """
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        result: Result = run(*words, results=folder)
        if steps is None:
            return float(result.summary["ms_per_iteration"]) / 1000
        ends = {
            record["step"]: record["time_s"]
            for record in read_metrics(result.folder)
            if record["kind"] == "train" and record["rank"] == 0
        }
    first, last = steps
    return float(ends[last] - (ends[first - 1] if first else 0.0))
