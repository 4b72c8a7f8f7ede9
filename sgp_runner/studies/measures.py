"""Measures of finished runs: results of the averaged model, and the cost of reaching a target.

A diverged run counts as the worse of a guessing model, with loss log(C) and accuracy 1/C for C
classes or tokens, and the worst other run of the study. It never reaches a target.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf, log
from typing import Any

from sgp_runner.config.run import Run
from sgp_runner.jobs.job_pool import PoolJob
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.studies.statistics import Reached, horizon_of
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import BYTES, SECONDS, Unit, duration, num_bytes

QUALITIES = ("loss", "accuracy", "bleu")
COSTS = {"time": "time_s", "bytes": "bytes_per_node"}  # names in a summary
EXAMPLES = "loss, accuracy, bleu, time, bytes, time_to_loss(0.5) or bytes_to_accuracy(0.9)"
UNITS = {"loss": "nats", "accuracy": "points", "bleu": "BLEU"}
AMOUNTS = {  # the units of a difference, by cost or quality
    "loss": Unit("nats", "0.02 nats", {"nats": Fraction(1)}),
    "accuracy": Unit("share", "0.5 points", {"points": Fraction(1, 100)}),
    "bleu": Unit("BLEU", "0.3 BLEU", {"BLEU": Fraction(1)}),
    "time": SECONDS,
    "bytes": BYTES,
}


def loss(job: PoolJob, diverged: float = inf) -> float:
    """Return the validation loss of the averaged model; ``diverged`` if the run diverged."""
    return diverged if job.diverged else number(job, "average_loss")


def number(job: PoolJob, key: str) -> float:
    """Return the number under ``key`` in the summary of a finished run."""
    assert job.summary is not None, job.name
    value = job.summary[key]
    assert isinstance(value, int | float)
    return float(value)


@dataclass(frozen=True)
class Measure:
    """A quantity that a study compares.

    cost: time (s of the run's clock) | bytes (sent by a node); empty: ``quality`` itself
    quality: loss | accuracy | bleu of the averaged model on the validation set; empty: the cost of
        the whole run
    target: the quality to reach; None without one
    """

    cost: str
    quality: str
    target: float | None = None

    def __str__(self) -> str:
        if self.target is None:
            return self.cost or self.quality
        return f"{self.cost}_to_{self.quality}({self.target:g})"

    @property
    def title(self) -> str:
        """The measure in words, such as ``time to a loss of 0.5``."""
        if self.target is None:
            return {"bytes": "bytes sent per node"}.get(str(self), str(self))
        return f"{self.cost} to {self.goal}"

    @property
    def goal(self) -> str:
        """The quality to reach in words, such as ``a loss of 0.5``."""
        target = self.target or 0.0
        return f"a loss of {target:g}" if self.quality == "loss" else f"{100 * target:g} % accuracy"

    def on(self, clock: str) -> str:
        """Return the title with the kind of time, according to ``clock`` (simulated | wall)."""
        kind = "simulated" if clock == "simulated" else "measured"
        return f"{kind} {self.title}" if self.cost == "time" else self.title

    @property
    def less_is_better(self) -> bool:
        return bool(self.cost) or self.quality == "loss"

    def text(self, value: float) -> str:
        """Format a value with its unit."""
        if abs(value) == inf:
            return "never"
        sign, size = ("-" if value < 0 else ""), abs(value)
        match self.cost:
            case "time":
                return sign + duration(size)
            case "bytes":
                return sign + num_bytes(size)
        if self.quality == "bleu":
            return f"{value:.2f}"
        return f"{100 * value:.2f} %" if self.quality == "accuracy" else f"{value:.4f}"

    def amount(self, text: str) -> float | None:
        """Parse a difference of this measure, such as ``0.02 nats``; None for any other text."""
        try:
            return float(text)
        except ValueError:
            return AMOUNTS[self.cost or self.quality].number(text)

    def difference(self, value: float, unit: bool = True) -> str:
        """Format the size of a difference; ``unit``: whether to add the unit of a quality."""
        if self.cost:
            return self.text(abs(value))
        scale = 100 if self.quality == "accuracy" else 1
        return f"{scale * abs(value):.2g}" + (f" {UNITS[self.quality]}" if unit else "")


def measure_of(text: str) -> Measure:
    """Return the measure described by ``text``. Raises ConfigError if there is none."""
    if text in QUALITIES:
        return Measure("", text)
    if text in COSTS:
        return Measure(text, "")
    match = re.fullmatch(r"(time|bytes)_to_(loss|accuracy)\(([\d.eE+-]+)(%?)\)", text)
    try:
        target = float(match[3]) / (100 if match[4] else 1) if match else -1.0
    except ValueError:
        target = -1.0
    if match and match[2] == "accuracy" and not match[4] and 1 < target < 100:
        raise ConfigError("measures", f"'{text}' is above 1: write {text[:-1]}%).")
    if match is None or not target > 0 or (match[2] == "accuracy" and target >= 1):
        raise ConfigError("measures", f"'{text}' is not a measure: write {EXAMPLES}.")
    return Measure(match[1], match[2], target)


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    classes: number of classes or tokens, for the loss of guessing; None: unknown, and a diverged
        run counts with its first loss
    """

    job: PoolJob
    classes: int | None = None

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        return read_metrics(self.job.folder)

    @cached_property
    def curve(self) -> list[dict[str, Any]]:
        """The evaluations of the averaged model, in order of epochs."""
        evaluations = [
            record
            for record in self.records
            if record["kind"] == "average" and isinstance(record.get("loss"), int | float)
        ]
        return sorted(evaluations, key=lambda record: float(record["epoch"]))

    def costs(self, cost: str) -> list[float]:
        """Return the time, or the bytes sent by a node, at each point of the curve."""
        import numpy as np

        from sgp_runner.report.read.runs import bytes_at

        times = [float(point["time_s"]) for point in self.curve]
        if cost == "time":
            return times
        return [float(sent) for sent in bytes_at(np.array(times), self.records)]

    def value(self, measure: Measure) -> float:
        """Return a measure without a target; for a diverged run, its value when guessing."""
        if not self.job.diverged:
            if measure.cost:
                return number(self.job, COSTS[measure.cost])
            if measure.quality not in self.curve[-1]:
                raise ConfigError(
                    "measures", f"{measure.quality} is not evaluated on this data: use loss."
                )
            return float(self.curve[-1][measure.quality])
        if measure.cost:
            return inf
        if measure.quality == "accuracy":
            return 1 / (self.classes or inf)
        if measure.quality == "bleu":
            return 0.0
        if self.classes is not None:
            return log(self.classes)
        return next(float(record["loss"]) for record in self.records if record["kind"] == "train")

    def reached(self, measure: Measure) -> tuple[float | None, float]:
        """Return the cost at which the target is reached, and the cost of the whole curve.

        The cost is linear between evaluations; None: the run never reaches the target.
        """
        from sgp_runner.report.read.run_groups import crossing

        assert measure.target is not None
        if self.job.diverged:
            return None, inf
        costs, sign = self.costs(measure.cost), -1 if measure.quality == "loss" else 1
        ahead = [sign * (float(point[measure.quality]) - measure.target) for point in self.curve]
        return crossing(ahead, costs), costs[-1]


def reached_by(runs: Sequence[RunResult], measure: Measure) -> Reached:
    """Return when the runs of an arm reach the target of a measure."""
    at, end = zip(*(run.reached(measure) for run in runs), strict=True)
    return Reached(at, end)


Sample = tuple[float, ...]  # one value for each seed
Pairing = Callable[[str, str], tuple[Sample, Sample]]  # the samples of two arms, by their names


def pairing(arms: Mapping[str, Sequence[RunResult]], measure: Measure) -> Pairing:
    """Return a function that returns the paired samples of two arms.

    If a run of either arm does not reach the target of the measure, the costs of both are capped at
    the earliest end of such a run. Other arms do not affect this.
    """
    if measure.target is None:
        worse: Callable[[list[float]], float] = max if measure.less_is_better else min
        others = [
            run.value(measure) for runs in arms.values() for run in runs if not run.job.diverged
        ]
        values = {
            name: tuple(
                worse([run.value(measure), *(others if run.job.diverged else ())]) for run in runs
            )
            for name, runs in arms.items()
        }
        return lambda ours, theirs: (values[ours], values[theirs])
    reached = {name: reached_by(runs, measure) for name, runs in arms.items()}

    def restricted(ours: str, theirs: str) -> tuple[Sample, Sample]:
        sides = reached[ours], reached[theirs]
        horizon = horizon_of(sides)
        return sides[0].restricted(horizon), sides[1].restricted(horizon)

    return restricted


def classes_of(run: Run) -> int | None:
    """Return the number of classes or tokens in the data; None for tasks without any.

    This loads the data.
    """
    dataset = run.data.load(run.torch_dtype)
    return dataset.num_classes if dataset.task.name in ("classification", "language") else None
