"""Published results by row, from ``published.csv``, paired with the results of our runs.

``results/paper`` explains the file. A preset names the row that it reproduces; runs and rows are
paired by this name. A quality is comparable only if our run uses the published data set and number
of epochs. Other qualities are shown as "not comparable". A time is shown only if it comes from a
run with this data set and number of epochs, or from a timing study.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.report.read.runs import REAL, TIMING

PATH = Path(__file__).parents[1] / "published.csv"
TEXTS = ("row", "dataset", "metric", "unit", "source")
NUMBERS = ("epochs", "value", "spread")
IMAGENET_STEPS = 1_281_167 / 8192  # steps of one epoch, with 256 images on each of 32 nodes

COMPARABLE = {
    "hours": "training time",
    "ms_per_iteration": "time per iteration",
    "val_top1": "top-1 accuracy",
    "top1_error": "top-1 error",
    "bleu": "BLEU",
}
UNITS = {
    "hours": "in hours",
    "ms_per_iteration": "in ms",
    "val_top1": "in %",
    "top1_error": "in %",
    "bleu": "",
}
TIMES = ("hours", "ms_per_iteration")


@dataclass(frozen=True)
class Published:
    """One published figure.

    value: in ``unit``
    spread: published deviation; None if there is none
    derived: whether this package derived the figure from another published figure
    """

    row: str
    dataset: str
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
def published() -> Mapping[str, Mapping[str, Published]]:
    """Return the figures by row id and metric.

    If a row reports only hours, milliseconds per iteration are derived from them.
    """
    rows: dict[str, dict[str, Published]] = {}
    with PATH.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            numbers = {key: float(line[key]) if line[key] else None for key in NUMBERS}
            texts = {key: line[key] for key in TEXTS}
            figure = Published(**texts, **numbers)  # type: ignore[arg-type]
            rows.setdefault(figure.row, {})[figure.metric] = figure
            if line["paper"] == "sgp" and figure.metric == "hours":
                assert figure.epochs is not None
                # An hour has 3.6e6 ms.
                rows[figure.row]["ms_per_iteration"] = replace(
                    figure,
                    metric="ms_per_iteration",
                    value=figure.value * 3.6e6 / (figure.epochs * IMAGENET_STEPS),
                    spread=None,
                    unit="ms",
                    derived=True,
                )
    return rows


@dataclass(frozen=True)
class Pair:
    """A published figure and our result for the same row, in the published unit.

    ours, low, high: mean, lowest and highest result over the seeds
    averaged: mean quality of the averaged model, if there is one
    comparable: whether the error is meaningful
    """

    published: Published
    setting: RunGroup
    ours: float
    low: float
    high: float
    averaged: float | None
    comparable: bool

    @property
    def row(self) -> str:
        return self.published.row

    @property
    def metric(self) -> str:
        return self.published.metric

    @property
    def kind(self) -> str:
        return str(self.setting.kind)

    @property
    def error(self) -> float | None:
        """Error of our result in percent of the published figure; None if not comparable."""
        return (
            100 * (self.ours - self.published.value) / self.published.value
            if self.comparable
            else None
        )

    @property
    def ours_is(self) -> str:
        """Description of our result: kind, origin, and whether it is comparable."""
        what = self.kind
        if self.metric in TIMES and self.kind != REAL:
            what = f"simulated, {'fitted to it' if self.setting.fitted else 'predicted'}"
        return what if self.comparable else f"{self.kind} on {self.setting.data}: not comparable"


def pairs_of(
    settings: Sequence[RunGroup], rows: Mapping[str, Mapping[str, Published]] | None = None
) -> list[Pair]:
    """Return the pairs in the order of the published rows, then of the settings."""
    rows = published() if rows is None else rows
    return [
        pair
        for row, figures in rows.items()
        for setting in settings
        if setting.row == row and setting.finished
        for pair in pairs_in(setting, figures)
    ]


def pairs_in(setting: RunGroup, figures: Mapping[str, Published]) -> Iterator[Pair]:
    for metric in (name for name in COMPARABLE if name in figures):
        figure = figures[metric]
        same = setting.data == figure.dataset and figure.epochs in (None, float(setting.epochs))
        if metric in TIMES and (same or setting.kind == TIMING):
            values, averaged, comparable = setting.runs[metric].astype(float), None, True
        elif (
            metric not in TIMES
            and setting.kind != TIMING
            and (metric == "bleu") == (setting.metric == "bleu")
            and setting.metric != "loss"
        ):
            values, averaged = (
                in_unit(setting.runs[key].astype(float), metric) for key in ("quality", "averaged")
            )
            averaged, comparable = float(averaged.mean()), same
        else:
            continue
        if values.notna().all():
            yield Pair(
                figure,
                setting,
                float(values.mean()),
                float(values.min()),
                float(values.max()),
                averaged,
                comparable,
            )


def in_unit(values: pd.Series, metric: str) -> pd.Series:
    """Convert accuracies to the published unit, percent of accuracy or error; BLEU is unchanged."""
    if metric == "bleu":
        return values
    return 100 * values if metric == "val_top1" else 100 - 100 * values
