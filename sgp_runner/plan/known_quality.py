"""The known quality of methods relative to data parallel, from ``quality.csv``.

A line of the file is a published pair of figures, or a difference that this project measured. For
other settings nothing is known, and nothing is estimated.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgp_runner.plan.methods import Method

PATH = Path(__file__).with_name("quality.csv")
NEAR = 0.01  # share of the figure of data parallel by which a near method is worse at most


@dataclass(frozen=True)
class Known:
    """A known figure of a method.

    baseline: the figure of data parallel; None if ``value`` is a difference
    better: whether a higher or a lower figure is better
    """

    baseline: float | None
    value: float
    unit: str
    better: str
    conditions: str
    source: str

    @property
    def worse(self) -> float | None:
        """The share of the figure of data parallel that is lost; None for a difference."""
        if self.baseline is None:
            return None
        lost = self.baseline - self.value
        return (lost if self.better == "higher" else -lost) / self.baseline

    @property
    def text(self) -> str:
        if self.baseline is None:
            figures = f"{self.value:g} {self.unit}"
        else:
            figures = f"{self.value:.2f} {self.unit}, data parallel {self.baseline:.2f}"
        return f"{figures} ({self.conditions}; {self.source})"


@functools.cache
def all_known() -> Mapping[str, Sequence[Known]]:
    """Return the known figures of each method, by the words that select the method."""
    catalogue: dict[str, list[Known]] = {}
    with PATH.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            baseline = float(line["baseline"]) if line["baseline"] else None
            texts = (line[key] for key in ("unit", "better", "conditions", "source"))
            figure = Known(baseline, float(line["value"]), *texts)
            catalogue.setdefault(line["words"], []).append(figure)
    return catalogue


def known_quality(method: Method) -> Sequence[Known]:
    return all_known().get(" ".join(method.overrides), ())


def is_near(method: Method) -> bool:
    """Return whether all published figures of a method are at most `NEAR` worse."""
    return is_close(known_quality(method))


def is_close(figures: Sequence[Known]) -> bool:
    """Return whether there are published figures, each at most `NEAR` worse."""
    losses = [figure.worse for figure in figures if figure.worse is not None]
    return bool(losses) and max(losses) <= NEAR
