"""Plots as data, to be drawn by ``interactive`` for the page and by ``pictures`` as PNG and SVG.

Hue and marker shape show the algorithm; shade and dash show its settings and the number of nodes.
The fill of a marker shows the kind of result: full for real runs, hollow for runs that train in
simulated time, hollow with a dot for timing only. Stars are published figures. Line labels are at
the right edge and do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from sgp_runner.report.read.naming import wrap_label
from sgp_runner.report.read.runs import PUBLISHED, REAL, REHEARSAL, TIMING, TRAINED

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
STAR = "star"  # the marker of published figures
MAX_MARKERS = 8  # of a line, at most
COMPLETE_WIDTH = 0.97  # of the width: a line that ends before it
MIN_TEXT_LINES = 18  # lines of text that the lowest plot has room for
VERTICAL_MARGIN = 0.04  # of a plot's height, above and below its lines
HORIZONTAL_MARGIN = 0.02  # of its width, behind them
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

    colour: colour of line and markers; None: the colour of the text
    shape: shape of the markers; None: no markers
    dash: dash pattern of the line; None: no line
    width: width of the line, in pixels of the page
    """

    colour: str | None = None
    shape: str | None = STAR
    fill: Fill = "full"
    dash: str | None = None
    width: float = 2.0


@dataclass(frozen=True)
class Series:
    """Points joined by one line, or sharing one kind of marker.

    x, y: for each point, a number or the name of a category
    low, high: range over the seeds at each point; ``Plot.spread`` is its direction
    texts: details of each point, shown on hover
    fastest: the least x of each point, which bounds the band, if x is a time at a range of rates
    """

    name: str
    style: Style
    x: Sequence[float | str]
    y: Sequence[float | str]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    texts: Sequence[str] = ()
    fastest: Sequence[float] | None = None

    def band(self) -> tuple[list[float], list[float]]:
        """Return x and y of the outline of the band, from the fastest points to the slowest.

        It is empty if there is no band.
        """
        if self.low is None and self.fastest is None:
            return [], []
        y = list(map(float, self.y))
        first, last = (self.high or y), (self.low or y)
        if y[-1] < y[0]:  # of a falling line the lowest seed comes first
            first, last = last, first
        x = [*(self.fastest or self.x), *reversed(self.x)]
        outline = zip(map(float, x), [*first, *reversed(last)], strict=True)
        points = [point for point in outline if all(map(math.isfinite, point))]
        return [x for x, _ in points], [y for _, y in points]

    def reach(self, middle: Sequence[float | str]) -> tuple[list[float], list[float]]:
        """Return the distances from each point down to ``low`` and up to ``high``.

        middle: coordinate of each point along the range

        Distances are at least 0. Without this limit, rounding could make them negative: the mean
        of equal values may differ from these values in its last bit.
        """
        assert self.low is not None and self.high is not None
        middles = list(map(float, middle))
        down = [max(x - low, 0.0) for x, low in zip(middles, self.low, strict=True)]
        return down, [max(high - x, 0.0) for x, high in zip(middles, self.high, strict=True)]


@dataclass(frozen=True)
class Axis:
    """An axis of a plot.

    ticks: all labelled values of a logarithmic axis
    span: first and last value of the axis; None: the range of the data
    """

    title: str
    scale: Literal["linear", "log", "category"] = "linear"
    ticks: Sequence[float] = ()
    from_zero: bool = False
    span: tuple[float, float] | None = None

    def share(self, value: float) -> float:
        """Return the position of a value along the span, from 0 to 1."""
        assert self.span is not None
        low, high, here = (
            [math.log(position) for position in (*self.span, value)]
            if self.scale == "log"
            else (*self.span, value)
        )
        return (here - low) / (high - low)


@dataclass(frozen=True)
class Label:
    """Text at the right edge that labels a line or a row.

    text: lines without markup
    colour: colour of the line; None: the colour of the text
    x, y: end of the line; for a row, y is the category, and x the end of its bar or None
    height: vertical centre of the text, from 0 to 1; None for a row
    """

    text: str
    colour: str | None
    x: float | None
    y: float | str
    height: float | None = None


@dataclass(frozen=True)
class Plot:
    """A plot, independent of how it is drawn.

    name: stem of its files
    title: the quantities, and the kinds of runs
    note: one or two sentences on how to read it
    spread: how ``low`` and ``high`` are drawn: a band around the line, or bars along x or y
    bars: whether all series except published figures are horizontal bars
    labels: names of the lines, or values of the rows; they replace a legend
    rest: settings omitted for readability
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
            if label.height is not None
            and label.x is not None
            and self.x.share(label.x) < COMPLETE_WIDTH
        ]

    @property
    def text_lines(self) -> int:
        """Total number of text lines in the labels of all lines."""
        return sum(label.text.count("\n") + 1 for label in self.labels if label.height is not None)

    def is_bar(self, series: Series) -> bool:
        return self.bars and series.style.shape != STAR


def labelled(plot: Plot) -> Plot:
    """Return the plot with a label for each line, as close as possible to the line's end.

    Both axes get a span; heights are measured along the span of y.
    """
    widths = [
        value
        for series in plot.series
        for values in (series.x, series.fastest or ())
        for value in numbers(values)
    ]
    x = spanned(plot.x, widths, HORIZONTAL_MARGIN)
    heights = [
        value
        for series in plot.series
        for values in (series.y, series.low or (), series.high or ())
        for value in numbers(values)
    ]
    y = spanned(plot.y, heights, VERTICAL_MARGIN)
    drawn = [series for series in plot.series if series.style.dash]
    ends = [end_of(series, x) for series in drawn]
    texts = [wrap_label(series.name) for series in drawn]
    lines = [text.count("\n") + 1 for text in texts]
    room = max(MIN_TEXT_LINES, sum(lines))
    middles = placed([y.share(end[1]) for end in ends], [count / room for count in lines])
    labels = [
        Label(text, series.style.colour, *end, middle)
        for text, series, end, middle in zip(texts, drawn, ends, middles, strict=True)
    ]
    return replace(plot, x=x, y=y, labels=labels)


def placed(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return the centres of labels, as close as possible to the ``wanted`` centres without overlap.

    All numbers are fractions of the plot's height. ``heights`` are the heights of the texts; their
    sum is at most 1. The labels keep their order; the sum of squared shifts is minimal.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    tall = [heights[number] for number in order]
    above = [0.0]  # distance from the lowest label, if all touch
    for low, high in pairwise(tall):
        above.append(above[-1] + (low + high) / 2)
    blocks: list[tuple[float, int]] = []  # labels that touch: sum of their wishes, and number
    for number, offset in zip(order, above, strict=True):
        blocks.append((wanted[number] - offset, 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            (wish, count), (other, more) = blocks.pop(), blocks.pop()
            blocks.append((wish + other, count + more))
    lowest, highest = tall[0] / 2, 1 - tall[-1] / 2 - above[-1]
    out = [0.0] * len(order)
    bases = (wish / count for wish, count in blocks for _ in range(count))
    for number, base, offset in zip(order, bases, above, strict=True):
        out[number] = min(max(base, lowest), highest) + offset
    return out


def spanned(axis: Axis, values: Sequence[float], edge: float) -> Axis:
    """Return the axis with a span around all ``values``, unless it has a span already.

    ``edge`` is the margin on each side as a fraction of the range. A logarithmic axis ignores
    values that are not positive.
    """
    if axis.span is not None:
        return axis
    log = axis.scale == "log"
    visible = [value for value in values if value > 0 or not log]
    low, high = min(visible), max(visible)
    if log:
        wide = (high / low) ** edge if high > low else 2.0
        return replace(axis, span=(low / wide, high * wide))
    low = min(0.0, low) if axis.from_zero else low
    wide = edge * (high - low) if high > low else abs(high) / 2 or 1.0
    return replace(axis, span=(low if axis.from_zero else low - wide, high + wide))


def end_of(series: Series, x: Axis) -> tuple[float, float]:
    """Return the last point of a line within the axis, interpolated at the axis limit."""
    assert x.span is not None
    points = [
        (float(here), float(y))
        for here, y in zip(series.x, series.y, strict=True)
        if math.isfinite(float(y))
    ]
    inside = [point for point in points if point[0] <= x.span[1]] or points[:1]
    if len(inside) == len(points):
        return inside[-1]
    (here, low), (there, high) = inside[-1], points[len(inside)]
    share = (x.span[1] - here) / (there - here)
    return x.span[1], low + share * (high - low)


def numbers(values: Sequence[float | str]) -> list[float]:
    return [float(value) for value in values if math.isfinite(float(value))]
