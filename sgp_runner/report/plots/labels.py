"""Names of lines at the right edge of a plot, none over another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from sgp_runner.report.plots.figure import Axis, Label, Plot, Series
from sgp_runner.report.read.naming import wrap_label

MIN_TEXT_LINES = 18  # lines of text that the lowest plot has room for
VERTICAL_MARGIN = 0.04  # of a plot's height, above and below its lines
HORIZONTAL_MARGIN = 0.02  # of its width, behind them


def labelled(plot: Plot) -> Plot:
    """Return a plot with a label for each of its lines, at the height where it ends.

    Both axes get a span, which says where that is.
    """
    x = spanned(
        plot.x, [value for each in plot.series for value in numbers(each.x)], HORIZONTAL_MARGIN
    )
    heights = [
        value
        for each in plot.series
        for values in (each.y, each.low or (), each.high or ())
        for value in numbers(values)
    ]
    y = spanned(plot.y, heights, VERTICAL_MARGIN)
    drawn = [each for each in plot.series if each.style.dash]
    ends = [end_of(each, x) for each in drawn]
    texts = [wrap_label(each.name) for each in drawn]
    lines = [text.count("\n") + 1 for text in texts]
    room = max(MIN_TEXT_LINES, sum(lines))
    places = placed([y.share(end[1]) for end in ends], [each / room for each in lines])
    labels = [
        Label(text, each.style.colour, *end, place)
        for text, each, end, place in zip(texts, drawn, ends, places, strict=True)
    ]
    return replace(plot, x=x, y=y, labels=labels)


def placed(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return the middles of labels as near as possible to where they are wanted.

    All are shares of the height of a plot; ``heights`` are those of the texts and add up to 1 or
    less. Labels that would overlap are moved by the least sum of squares, in their order.
    """
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    tall = [heights[number] for number in order]
    above = [0.0]  # distance from the lowest label, if all touch
    for low, high in pairwise(tall):
        above.append(above[-1] + (low + high) / 2)
    blocks: list[tuple[float, int]] = []  # labels that touch: sum of their wishes, and number
    for number, offset in zip(order, above, strict=True):
        blocks.append((wanted[number] - offset, 1))
        while len(blocks) > 1 and middle(blocks[-2]) > middle(blocks[-1]):
            (wish, count), (other, more) = blocks.pop(), blocks.pop()
            blocks.append((wish + other, count + more))
    lowest, highest = tall[0] / 2, 1 - tall[-1] / 2 - above[-1]
    bases = [min(max(middle(block), lowest), highest) for block in blocks for _ in range(block[1])]
    out = [0.0] * len(order)
    for number, base, offset in zip(order, bases, above, strict=True):
        out[number] = base + offset
    return out


def middle(block: tuple[float, int]) -> float:
    return block[0] / block[1]


def spanned(axis: Axis, values: Sequence[float], edge: float) -> Axis:
    """Return the axis with a span that holds all ``values`` and an ``edge`` around them.

    On a logarithmic axis only positive values count.
    """
    if axis.span is not None:
        return axis
    log = axis.scale == "log"
    shown = [value for value in values if value > 0 or not log]
    low, high = min(shown), max(shown)
    if log:
        wide = (high / low) ** edge if high > low else 2.0
        return replace(axis, span=(low / wide, high * wide))
    low = min(0.0, low) if axis.from_zero else low
    wide = edge * (high - low) if high > low else abs(high) / 2 or 1.0
    return replace(axis, span=(low if axis.from_zero else low - wide, high + wide))


def end_of(series: Series, x: Axis) -> tuple[float, float]:
    """Return the last point of a line within the axis, which may end between two of its points."""
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
