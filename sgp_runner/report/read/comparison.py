"""Published figures beside ours, joined by the row that a run's preset reproduces.

A quality is compared only if it was reached on the published data set in as many epochs, a time
only if a timing study or such a run gave it. Any other quality is shown beside the published figure
and labelled not comparable; any other time is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from sgp_runner.report.read.published import Published, published
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.report.read.runs import REAL, TIMING

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
class Pair:
    """A published figure and ours: mean, lowest and highest over the seeds, in the published unit.

    averaged: mean of the averaged model, where there is one
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
        """Error in percent of the published figure; None if the two cannot be compared."""
        return (
            100 * (self.ours - self.published.value) / self.published.value
            if self.comparable
            else None
        )

    @property
    def ours_is(self) -> str:
        """Description of ours: its kind, how it was obtained, and whether it is comparable."""
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
    """Convert fractions to the percent of a published accuracy or error."""
    if metric == "bleu":
        return values
    return 100 * values if metric == "val_top1" else 100 - 100 * values
