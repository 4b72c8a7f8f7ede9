"""Plots as data, to be drawn by ``interactive`` for the page and by ``images`` as PNG and SVG.

The colour and shape of a marker show the algorithm, shade and dash its settings and nodes. The fill
of a marker shows the kind of result: full for real runs, hollow for trained and rehearsed ones in
simulated time, with a dot for timing only, a star for published figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sgp_runner.report.read.runs import PUBLISHED, REAL, REHEARSAL, TIMING, TRAINED

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
STAR = "star"  # the marker of published figures
MAX_MARKERS = 8  # of a line, at most
COMPLETE_WIDTH = 0.97  # of the width: a line that ends before it
Fill = Literal["full", "hollow", "dotted"]
FILLS: dict[str, Fill] = {
    REAL: "full",
    TRAINED: "hollow",
    REHEARSAL: "hollow",
    TIMING: "dotted",
    PUBLISHED: "hollow",
}
GLYPHS = {REAL: "●", TRAINED: "◐", REHEARSAL: "○", TIMING: "◉", PUBLISHED: "☆"}


@dataclass(frozen=True)
class Style:
    """Appearance of a series.

    colour: None for the colour of the text
    shape: shape of the markers; None for no markers
    dash: None for no line
    """

    colour: str | None = None
    shape: str | None = STAR
    fill: Fill = "full"
    dash: str | None = None


@dataclass(frozen=True)
class Series:
    """Points of one line or marker.

    x, y: a number or the name of a category for each point
    low, high: range over the seeds at each point, along ``Plot.spread``
    texts: details of each point, shown on hover
    """

    name: str
    style: Style
    x: Sequence[float | str]
    y: Sequence[float | str]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    texts: Sequence[str] = ()

    def reach(self, middle: Sequence[float | str]) -> tuple[list[float], list[float]]:
        """Return the distances from each point down to ``low`` and up to ``high``.

        middle: position of each point along the bar. Distances are not negative: the mean of equal
            values may differ from them in its last bit.
        """
        assert self.low is not None and self.high is not None
        places = [float(place) for place in middle]
        down = [max(place - low, 0.0) for place, low in zip(places, self.low, strict=True)]
        return down, [max(high - place, 0.0) for place, high in zip(places, self.high, strict=True)]


@dataclass(frozen=True)
class Axis:
    """An axis of a plot.

    ticks: the only marked values, on a logarithmic axis
    span: first and last value that the axis shows; None for those of the data
    """

    title: str
    scale: Literal["linear", "log", "category"] = "linear"
    ticks: Sequence[float] = ()
    from_zero: bool = False
    span: tuple[float, float] | None = None

    def share(self, value: float) -> float:
        """Return the place of a value along the span, from 0 to 1."""
        assert self.span is not None
        low, high, here = (
            [math.log(each) for each in (*self.span, value)]
            if self.scale == "log"
            else (*self.span, value)
        )
        return (here - low) / (high - low)


@dataclass(frozen=True)
class Label:
    """A text at the right edge, beside what it names.

    text: lines without markup
    colour: that of the line; None for the colour of the text
    x, y: end of the line, or nothing and the row of a category
    place: height of the middle of the text, from 0 to 1; None in a row
    """

    text: str
    colour: str | None
    x: float | None
    y: float | str
    place: float | None = None


@dataclass(frozen=True)
class Plot:
    """A plot, independent of how it is drawn.

    name: stem of its files
    title: what is plotted, of which kinds of runs
    note: one or two sentences on how to read it
    spread: how ``low`` and ``high`` are drawn: a band around the line, or bars along x or y
    bars: whether each series but published figures is a horizontal bar
    labels: names of the lines, or values of the rows; there is no legend
    rest: what is not drawn, so that the plot can be read
    """

    name: str
    title: str
    note: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    spread: Literal["band", "x", "y"] = "band"
    bars: bool = False
    labels: Sequence[Label] = ()
    rest: Sequence[str] = ()

    def unfinished(self) -> list[Label]:
        """Return the labels of lines that end far from the right edge."""
        return [
            label
            for label in self.labels
            if label.x is not None and self.x.share(label.x) < COMPLETE_WIDTH
        ]

    @property
    def text_lines(self) -> int:
        """Number of text lines that the labels of lines need one below the other."""
        return sum(label.text.count("\n") + 1 for label in self.labels if label.place is not None)

    def is_bar(self, series: Series) -> bool:
        return self.bars and series.style.shape != STAR
