"""Plots as data and layout for plotly.js, without its Python package.

The page sets the colours of text and grid.
"""

from __future__ import annotations

import math
from typing import Any

from sgp_runner.report.plots.figure import MAX_MARKERS, Axis, Label, Plot, Series

SYMBOLS = {"full": "", "hollow": "-open", "dotted": "-open-dot"}


def figure(plot: Plot) -> dict[str, Any]:
    """Return a plot as JSON values; a colour of ``null`` means the colour of the text."""
    traces = [trace for series in plot.series for trace in traces_of(plot, series)]
    layout = {"xaxis": axis(plot.x), "yaxis": axis(plot.y)}
    if plot.y.scale == "category":
        rows = len({y for series in plot.series for y in series.y})
        layout["yaxis"] |= {"range": [rows - 0.5, -0.5]}  # the first on top
    for label in plot.unfinished():  # a faint line from the end of a curve to its label
        assert plot.x.span is not None
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [label.x, plot.x.span[1]],
                "y": [label.y, label.y],
                "line": {"color": label.colour, "width": 1, "dash": "dot"},
                "opacity": 0.6,
                "hoverinfo": "skip",
            }
        )
    return {
        "name": plot.name,
        "data": traces,
        "layout": layout,
        "labels": [label_of(plot, label) for label in plot.labels],
        "lines": plot.text_lines,
    }


def label_of(plot: Plot, label: Label) -> dict[str, Any]:
    """Return a label for the page, with the heights of line end and text from 0 to 1."""
    text = label.text.replace("\n", "<br>")
    if label.height is None:
        at = {} if label.x is None else {"at": label.x}
        return {"text": text, "row": category(label.y)} | at
    return {
        "text": text,
        "colour": label.colour,
        "from": plot.y.share(float(label.y)),
        "to": label.height,
    }


def traces_of(plot: Plot, series: Series) -> list[dict[str, Any]]:
    style, traces = series.style, []
    band = series.band() if plot.spread == "band" else ([], [])
    if all(band):
        shape = {
            "x": band[0],
            "y": band[1],
            "fill": "toself",
            "fillcolor": faint(style.colour),
        }
        hidden = {"showlegend": False, "hoverinfo": "skip", "line": {"width": 0}, "mode": "lines"}
        traces.append({"type": "scatter", "legendgroup": series.name, **shape, **hidden})
    if plot.is_bar(series):
        trace: dict[str, Any] = {"type": "bar", "orientation": "h", "width": 0.6}
        trace |= {"name": series.name, "marker": {"color": style.colour}}
    else:
        trace = points_of(series)
    trace |= {"x": list(map(category, series.x)), "y": list(map(category, series.y))}
    if plot.spread in ("x", "y") and series.low is not None and series.high is not None:
        down, up = series.reach(series.x if plot.spread == "x" else series.y)
        trace[f"error_{plot.spread}"] = {
            "type": "data",
            "symmetric": False,
            "array": up,
            "arrayminus": down,
            "thickness": 1.5,
            "width": 5,
            "color": None if plot.bars else style.colour,
        }
    if series.texts:
        trace["text"] = list(series.texts)
        trace |= {"textposition": "none"} if plot.is_bar(series) else {}
    return [*traces, trace | {"hovertemplate": hover(plot, series)}]


def points_of(series: Series) -> dict[str, Any]:
    """Return a trace of plotly.js without coordinates: its name, line and markers."""
    style = series.style
    parts = [name for name, wanted in (("lines", style.dash), ("markers", style.shape)) if wanted]
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": series.name,
        "legendgroup": series.name,
        "mode": "+".join(parts),
    }
    if style.dash:
        trace["line"] = {"color": style.colour, "dash": style.dash, "width": style.width}
    if style.shape:
        size = 13 if style.shape == "star" else 9 if style.dash else 12
        trace["marker"] = {
            "color": style.colour,
            "symbol": style.shape + SYMBOLS[style.fill],
            "size": size,
            "line": {"width": 0 if style.fill == "full" else 1.5},
        }
        trace["cliponaxis"] = False  # the markers at the ends of the axes are whole
        if style.dash:
            trace["marker"]["maxdisplayed"] = MAX_MARKERS
    return trace


def hover(plot: Plot, series: Series) -> str:
    x, y = (
        f"%{{{name}}}" if axis.scale == "category" else f"%{{{name}:.4~g}}"
        for name, axis in (("x", plot.x), ("y", plot.y))
    )
    where = f"{plot.x.title}: {x}" + (f"<br>{plot.y.title}: {y}" if plot.y.title else "")
    details = "<br>%{text}" if series.texts else ""
    return f"<b>{series.name}</b><br>{where}{details}<extra></extra>"


def axis(of: Axis) -> dict[str, Any]:
    out: dict[str, Any] = {
        "title": {"text": of.title, "standoff": 8},
        "type": of.scale,
        "automargin": True,
        "zeroline": False,
    }
    if of.ticks:
        out |= {
            "tickmode": "array",
            "tickvals": list(of.ticks),
            "ticktext": [f"{tick:g}" for tick in of.ticks],
            "tickangle": 0,
        }
    if of.span is not None:
        out["range"] = [math.log10(end) if of.scale == "log" else end for end in of.span]
    elif of.from_zero:
        out["rangemode"] = "tozero"
    return out


def category(value: float | str) -> float | str | None:
    if isinstance(value, str):
        return value.replace("\n", "<br>")
    return value if math.isfinite(value) else None


def faint(colour: str | None) -> str:
    """Return the colour of a band around a line of this ``colour``."""
    red, green, blue = (int((colour or "#808080")[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
