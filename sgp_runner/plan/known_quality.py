"""The known quality of methods relative to data parallel, from ``quality.csv``.

Each line of the file is a published pair of figures, or a difference measured by this project, for
a given number of parameters and replicas. Fewer steps H between exchanges are assumed to be no
worse. For other settings the quality is unknown and not estimated; for other sizes and numbers of
replicas, figures are marked as extrapolated.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from sgp_runner.plan.methods import Method
from sgp_runner.utils.units import counted, with_prefix

PATH = Path(__file__).with_name("quality.csv")
NEAR = 0.01  # share of the figure of data parallel by which a near method is worse at most
# Factors of the number of parameters and of replicas within which a figure is quoted.
SIZES, REPLICAS = 4.0, 2.0
PERIOD = "algo.period="


@dataclass(frozen=True)
class Known:
    """A known figure of a method.

    baseline: the figure of data parallel; None if ``value`` is a difference
    better: whether a higher or a lower figure is better
    parameters: of the model; None: a small model
    replicas: number of averaged replicas
    """

    baseline: float | None
    value: float
    unit: str
    better: str
    parameters: float | None
    replicas: int
    conditions: str
    source: str

    @property
    def worse(self) -> float | None:
        """The loss relative to data parallel's figure; None for a difference."""
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
    """Return the known figures of each method, by the overrides that select the method."""
    catalogue: dict[str, list[Known]] = {}
    with PATH.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            baseline = float(line["baseline"]) if line["baseline"] else None
            figure = Known(
                baseline,
                float(line["value"]),
                line["unit"],
                line["better"],
                float(line["parameters"]) if line["parameters"] else None,
                int(line["replicas"]),
                line["conditions"],
                line["source"],
            )
            catalogue.setdefault(line["words"], []).append(figure)
    return catalogue


def known_quality(method: Method) -> Sequence[Known]:
    """Return the figures of a method at its H, or at the next larger H with figures."""
    rest, period = without_period(method.overrides)
    figures = {
        known: quality
        for overrides, quality in all_known().items()
        for other, known in [without_period(overrides.split())]
        if other == rest and known >= period
    }
    return figures[min(figures)] if figures else ()


def without_period(overrides: Sequence[str]) -> tuple[list[str], int]:
    """Split ``overrides`` into the ones other than H, and H; 0 for a method without H."""
    rest = [word for word in overrides if not word.startswith(PERIOD)]
    return rest, sum(int(word.removeprefix(PERIOD)) for word in overrides if word not in rest)


def near_until(method: Method) -> int:
    """Return the largest H at which a method is near, ignoring its own H; 0 if there is none."""
    rest, _ = without_period(method.overrides)
    known = {without_period(overrides.split())[1] for overrides in all_known()}
    methods = {h: Method("", (*rest[:1], f"{PERIOD}{h}", *rest[1:])) for h in known}
    return max((h for h in known if is_near(methods[h])), default=0)


def apart(figure: Known, parameters: float, replicas: int) -> tuple[float, float]:
    """Return the ratios of size and replicas between a figure and a plan, each at least 1."""
    ratios = (figure.parameters or 0) / parameters, figure.replicas / replicas
    size, number = (max(ratio, 1 / ratio) if ratio else inf for ratio in ratios)
    return size, number


def is_comparable(figure: Known, parameters: float, replicas: int) -> bool:
    size, number = apart(figure, parameters, replicas)
    return size <= SIZES and number <= REPLICAS


def extrapolated(method: Method, parameters: float, replicas: int) -> str:
    """Return the size and replicas from which a method's quality is extrapolated, as text.

    Empty if a figure is comparable or nothing is known.
    """
    figures = known_quality(method)
    if not figures or any(is_comparable(figure, parameters, replicas) for figure in figures):
        return ""
    nearest = min(figures, key=lambda figure: apart(figure, parameters, replicas))
    size = "a small model"
    if nearest.parameters is not None:
        short = with_prefix(nearest.parameters, "").replace(" ", "").replace("G", "B")
        size = f"{short} parameters"
    return f"{size}, {counted(nearest.replicas, 'replica')}"


def is_near(method: Method) -> bool:
    """Return whether a method has published figures, all at most `NEAR` worse."""
    losses = [figure.worse for figure in known_quality(method) if figure.worse is not None]
    return bool(losses) and max(losses) <= NEAR
