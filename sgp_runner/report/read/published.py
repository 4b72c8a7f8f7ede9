"""Published results by row, from ``published.csv``, which ``results/paper`` explains.

A preset that reproduces a row has its name.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).parents[1] / "published.csv"
IMAGENET_STEPS = 1_281_167 / 8192  # steps of one epoch, with 256 images on each of 32 nodes


@dataclass(frozen=True)
class Published:
    """One published figure.

    value: in ``unit``
    spread: published deviation; None if there is none
    derived: computed here from another published figure
    """

    row: str
    dataset: str
    model: str
    method: str
    epochs: float | None
    metric: str
    value: float
    spread: float | None
    unit: str
    source: str
    derived: bool = False

    @property
    def origin(self) -> str:
        """The source, marked if the figure is derived from it."""
        return f"{self.source} (derived)" if self.derived else self.source


@functools.cache
def published(path: Path = PATH) -> Mapping[str, Mapping[str, Published]]:
    """Return the figures by row id and metric.

    Milliseconds per iteration are derived for the rows that only report hours.
    """
    rows: dict[str, dict[str, Published]] = {}
    for figure in _read(path):
        rows.setdefault(figure.row, {})[figure.metric] = figure
    return rows


def _read(path: Path) -> Iterator[Published]:
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            spread = float(line["spread"]) if line["spread"] else None
            epochs = float(line["epochs"]) if line["epochs"] else None
            facts = (line["row"], line["dataset"], line["model"], line["method"], epochs)
            yield Published(
                *facts, line["metric"], float(line["value"]), spread, line["unit"], line["source"]
            )
            if line["paper"] == "sgp" and line["metric"] == "hours":
                # An hour has 3.6e6 ms.
                ms = float(line["value"]) * 3.6e6 / (float(line["epochs"]) * IMAGENET_STEPS)
                yield Published(
                    *facts, "ms_per_iteration", ms, None, "ms", line["source"], derived=True
                )
