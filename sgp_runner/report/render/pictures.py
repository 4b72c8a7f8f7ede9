"""Plots as PNG and SVG, drawn by matplotlib without a display."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterable, Sequence
from multiprocessing import current_process, get_context
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from sgp_runner.report.plots.figure import MAX_MARKERS, Axis, Label, Plot, Series
from sgp_runner.utils.cores import present_cores

Points: TypeAlias = list[float | str]
FORMATS = ("png", "svg")
FORKED_PLOTS = 8  # plots for which a process is worth its start
WITHOUT_TIME: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
INK = "#222222"
SHAPES = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "triangle-down": "v",
    "pentagon": "p",
    "triangle-left": "<",
    "triangle-right": ">",
    "hexagon": "h",
    "star": "*",
}
DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (9, 3)),
}
TITLE_WIDTH = 70  # characters
LINE_INCHES = 0.17  # inches that a line of a label takes


class Chart(Figure):
    """A matplotlib figure without a window; notebooks display it as PNG."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure, or only compute its layout in the dry draw before saving a file."""
        engine = self.get_layout_engine()
        if isinstance(engine, ConstrainedLayoutEngine) and self.canvas.is_saving():
            engine.execute(self)
        else:
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=100)
        return out.getvalue()


def save_all(plots: Iterable[Plot], folder: Path) -> None:
    """Write ``<name>.png`` and ``<name>.svg`` of each plot; equal plots give equal bytes.

    Many plots are distributed over forked processes, one for each additional core.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plots = list(plots)
    forks = hasattr(os, "fork") and not current_process().daemon
    count = max(1, min(present_cores(), len(plots) // FORKED_PLOTS)) if forks else 1
    shares = [plots[first::count] for first in range(count)]
    context: Any = get_context("fork" if forks else None)
    others = [context.Process(target=save_share, args=(share, folder)) for share in shares[1:]]
    for process in others:
        process.start()
    save_share(shares[0], folder)
    for process, share in zip(others, shares[1:], strict=True):
        process.join()
        if process.exitcode:  # repeat its error here
            save_share(share, folder)


def save_share(plots: Iterable[Plot], folder: Path) -> None:
    for plot in plots:
        save([plot], folder, plot.name, FORMATS)


def save(plots: Sequence[Plot], folder: Path, name: str, formats: Iterable[str]) -> None:
    """Write the plots, stacked vertically, as ``<name>.<format>`` for each of png, svg, pdf."""
    # Journals require fonts of type 42 in PDF.
    with rc_context({"svg.hashsalt": name, "pdf.fonttype": 42}):
        figure = drawn(*plots)
        for kind in formats:
            figure.savefig(folder / f"{name}.{kind}", dpi=150, metadata=WITHOUT_TIME.get(kind))


def drawn(*plots: Plot) -> Chart:
    """Draw plots, stacked vertically."""
    with rc_context({"font.size": 10}):
        heights = list(map(height_of, plots))
        figure = Chart(figsize=(7, sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(plots), height_ratios=heights, squeeze=False)
        for plot, (axes,) in zip(plots, panels, strict=True):
            draw_panel(axes, plot)
    return figure


def height_of(plot: Plot) -> float:
    """Return the height of a plot in inches."""
    if plot.y.scale != "category":
        return max(4.0, 1.2 + LINE_INCHES * plot.text_lines)
    names = {str(y) for series in plot.series for y in series.y}
    lines = max((name.count("\n") for name in names), default=0) + 1
    return 1.6 + max(0.45, LINE_INCHES * lines) * len(names)


def draw_panel(axes: Axes, plot: Plot) -> None:
    """Draw a plot on ``axes``."""
    for series in plot.series:
        draw(axes, plot, series)
    set_axis(axes, "x", plot.x)
    set_axis(axes, "y", plot.y)
    if plot.y.scale == "category":
        axes.invert_yaxis()
        axes.margins(y=0.5 / max(1, len({y for series in plot.series for y in series.y})))
    axes.set_title(textwrap.fill(literal(plot.title), TITLE_WIDTH), loc="left", fontsize=11)
    axes.grid(alpha=0.3, axis="x" if plot.bars else "both")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for label in plot.labels:
        draw_label(axes, plot, label)
    for label in plot.unfinished():
        axes.plot(
            (plot.x.share(float(label.x or 0)), 1.0),
            [plot.y.share(float(label.y))] * 2,
            ":",
            color=label.colour or INK,
            linewidth=1,
            alpha=0.6,
            transform=axes.transAxes,
        )


def draw_label(axes: Axes, plot: Plot, label: Label) -> None:
    """Write a label to the right of the plot, with a line to the end of its curve."""
    text = literal(label.text)
    if label.height is None:
        row = literal(str(label.y))
        side, x, gap = ("axes fraction", 1.0, 8) if label.x is None else ("data", label.x, 5)
        place: Any = {"xytext": (gap, 0), "textcoords": "offset points"}
        axes.annotate(text, (x, row), xycoords=(side, "data"), va="center", fontsize=9, **place)
        return
    axes.annotate(
        text,
        (1, plot.y.share(float(label.y))),
        (1.06, label.height),
        xycoords="axes fraction",
        va="center",
        fontsize=9,
        arrowprops={
            "arrowstyle": "-",
            "color": label.colour or INK,
            "linewidth": 1.5,
            "shrinkA": 0,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        },
    )


def literal(text: str) -> str:
    """Return ``text`` with dollar signs escaped, so that matplotlib does not parse math."""
    return text.replace("$", r"\$")


def draw(axes: Axes, plot: Plot, series: Series) -> None:
    style = series.style
    colour = style.colour or INK
    x, y = (
        [literal(value) if isinstance(value, str) else value for value in values]
        for values in (series.x, series.y)
    )
    if plot.is_bar(series):
        axes.barh(y, x, color=colour, height=0.6)
    else:
        draw_points(axes, series, x, y, colour)
    if plot.spread == "band":
        if all(band := series.band()):
            axes.fill(*band, color=colour, alpha=0.18, linewidth=0)
        return
    if series.low is None or series.high is None:
        return
    xerr, yerr = (series.reach(x), None) if plot.spread == "x" else (None, series.reach(y))
    axes.errorbar(x, y, yerr, xerr, fmt="none", ecolor=INK if plot.bars else colour, capsize=3)


def draw_points(axes: Axes, series: Series, x: Points, y: Points, colour: str) -> None:
    """Draw a line with so few markers that it stays visible, or markers without a line."""
    style = series.style
    size = 11 if style.shape == "star" else 6
    every = max(1, -(-len(x) // MAX_MARKERS)) if style.dash else 1
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=DASHES[style.dash] if style.dash else "none",
        linewidth=0.75 * style.width,
        marker=SHAPES[style.shape] if style.shape else "none",
        markersize=size,
        markevery=every,
        markerfacecolor=colour if style.fill == "full" else "white",
    )
    if style.fill == "dotted":
        axes.plot(x, y, color=colour, linestyle="none", marker=".", markersize=4, markevery=every)


def set_axis(axes: Axes, name: str, axis: Axis) -> None:
    getattr(axes, f"set_{name}label")(axis.title)
    if axis.scale == "log":
        getattr(axes, f"set_{name}scale")("log")
    if axis.ticks:
        ticks = getattr(axes, f"{name}axis")
        ticks.set_ticks(list(axis.ticks), [f"{tick:g}" for tick in axis.ticks])
        ticks.set_ticks([], minor=True)
    if axis.span is not None:
        getattr(axes, f"set_{name}lim")(*axis.span)
    elif axis.from_zero:
        getattr(axes, f"set_{name}lim")(0, 1.05 * getattr(axes.dataLim, f"{name}1"))
