"""Plots of the quality reached against time, epochs and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from sgp_runner.report.plots.figure import Axis, Plot, Series, Style
from sgp_runner.report.plots.labels import labelled
from sgp_runner.report.plots.style import MAX_AXIS_RATIO, StyleMap, select_lines, ticks_between
from sgp_runner.report.rank.ranking import Ranking, Target
from sgp_runner.report.read.naming import (
    CLOCK,
    byte_unit,
    file_name,
    group_by,
    kinds,
    names,
    on_cluster,
    time_unit,
    timed_models,
)
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.utils.units import counted, duration

AXIS = {"accuracy": "accuracy in %", "bleu": "BLEU", "loss": "loss"}
FACTOR = {"accuracy": 100.0, "bleu": 1.0, "loss": 1.0}
ERROR = "error in %"
AXIS_END_MEDIANS = 3  # times the median: where an axis may end
LINES_PER_CUT_LINE = 4  # an axis may end before one line in so many
ERROR_AXIS_ACCURACY = 0.9  # where half of the accuracies end above it, errors are shown
MAX_LOSS_RATIO = 5  # times: a range of losses or errors that has one
BAND_NOTE = "Line: mean over the seeds. Band: from the lowest seed to the highest."


def against_time(ranking: Ranking) -> Iterator[Plot]:
    """Plot the curves of a ranking."""
    ordered = [each for each in ranking.settings if len(each.curve)]
    if not ordered:
        return
    times = {id(row.setting): row.time for row in ranking.rows if row.time > 0}
    members = select_lines(ordered, lambda each: each.algorithm)
    ends = [float(each.curve["time_s"].max()) for each in members]
    reach = [times.get(id(each), end) for each, end in zip(members, ends, strict=True)]
    begins = [float(each.curve["time_s"].min()) for each in members]
    scale, end = chosen(reach, ends, begins)
    unit, size = time_unit(max(ends) if end is None else end)
    clock = CLOCK[ranking.clock]
    axis = axis_of(f"{clock} in {unit}", scale, end, begins, ends, size)
    note = (
        f"The axis ends at {AXIS_END_MEDIANS} times the median time to the target. " if end else ""
    )
    plot = quality_plot(
        ("time", f"against {clock}"),
        members,
        ("time_s", size),
        axis,
        (ranking.clock, *ranking.words[:-1]),
        note,
        [
            f" ({duration(times[id(each)])})" if end and times.get(id(each), 0.0) > end else ""
            for each in members
        ],
    )
    if ranking.target is not None:
        plot = with_line(plot, ranking.target)
    hidden = [each for each in ordered if each not in members]
    yield replace(labelled(plot), rest=rest_of(ordered, hidden, times))


def chosen(
    reach: Sequence[float], ends: Sequence[float], begins: Sequence[float]
) -> tuple[Literal["linear", "log"], float | None]:
    """Choose the axis of time that lets no line squeeze the others: its scale and where it ends.

    Linear, and ended at `AXIS_END_MEDIANS` times the median reach, unless that would hide more than
    one line in `LINES_PER_CUT_LINE`, or the beginning of any, or squeeze one that is
    `MAX_AXIS_RATIO` times as fast. Else logarithmic.

    reach: time until a line reaches the target, or its end. begins, ends: of the lines.
    """
    usual = median(reach)
    end = AXIS_END_MEDIANS * usual
    late = sum(time > end for time in reach)
    if (
        late * LINES_PER_CUT_LINE > len(reach)
        or min(reach) * MAX_AXIS_RATIO < usual
        or max(begins) >= end
    ):
        return "log", None
    return "linear", end if max(ends) > end else None


def axis_of(
    title: str,
    scale: Literal["linear", "log"],
    end: float | None,
    begins: Sequence[float],
    ends: Sequence[float],
    size: float,
) -> Axis:
    """Return the axis of time or bytes, in units of ``size``."""
    if scale == "log" and min(begins) > 0:
        return Axis(title, "log", ticks_between(min(begins) / size, max(ends) / size))
    return Axis(title, from_zero=True, span=(0.0, end / size) if end else None)


def with_line(plot: Plot, target: Target) -> Plot:
    """Return the plot with a dotted line at the target."""
    y = scaled(target.value, target.metric, plot.y.title == ERROR)
    ends = [float(x) for each in plot.series for x in each.x]
    begin, end = plot.x.span or (0.0 if plot.x.scale == "linear" else min(ends), max(ends))
    line = Series(target.words, Style(None, None, dash="dot"), [begin, end], [y, y])
    return replace(plot, series=[*plot.series, line])


def rest_of(
    ordered: Sequence[RunGroup], hidden: Sequence[RunGroup], times: Mapping[int, float]
) -> list[str]:
    """Name the settings that are not drawn, with their time to the target where they reach it."""
    out = []
    for name, each in zip(names(ordered), ordered, strict=True):
        if each in hidden:
            time = times.get(id(each))
            out.append(f"{name}: {duration(time)}" if time else name)
    return out


def against_epochs(settings: Sequence[RunGroup]) -> Iterator[Plot]:
    """Plot quality against epochs. The settings come the best first."""
    for name, members in by_task(settings).items():
        yield drawn(members, ("epochs", "against epochs"), ("epoch", 1.0), "epochs", name)


def against_bytes(settings: Sequence[RunGroup]) -> Iterator[Plot]:
    """Plot quality against the bytes that a node sent. The settings come the best first."""
    sent = [each for each in settings if each.curve["bytes"].max() > 0]
    for name, members in by_task(sent).items():
        unit, size = byte_unit(max(each.curve["bytes"].max() for each in members))
        where = ("bytes", "against bytes sent per node")
        yield drawn(members, where, ("bytes", size), f"{unit} sent per node", name)


def drawn(
    ordered: Sequence[RunGroup],
    against: tuple[str, str],
    column: tuple[str, float],
    title: str,
    facet: tuple[str, ...],
) -> Plot:
    """Plot quality against a column of the curves, for at most eight of the settings."""
    members = select_lines(ordered, lambda each: each.algorithm)
    key, size = column
    ends = [float(each.curve[key].max()) for each in members]
    begins = [float(each.curve[key].min()) for each in members]
    wide = max(ends) > MAX_AXIS_RATIO * min(ends)
    axis = axis_of(title, "log" if wide else "linear", None, begins, ends, size)
    plot = labelled(quality_plot(against, members, column, axis, facet))
    hidden = [each for each in ordered if each not in members]
    return replace(plot, rest=rest_of(ordered, hidden, {}))


def by_task(settings: Sequence[RunGroup]) -> Mapping[tuple[str, ...], list[RunGroup]]:
    return group_by(
        settings,
        lambda each: (f"{each.model} on {each.data}", timed_models([each]), each.cluster),
    )


def quality_plot(
    against: tuple[str, str],
    settings: Sequence[RunGroup],
    column: tuple[str, float],
    axis: Axis,
    facet: tuple[str, ...],
    note: str = "",
    remarks: Sequence[str] = (),
) -> Plot:
    """Plot quality against a column of the curves.

    against: short name and title of the other axis
    column: name and unit of the other axis
    facet: what these settings share
    remarks: behind the name of each setting
    """
    metric, (name, title), (key, size) = settings[0].metric, against, column
    counts = {len(each.seeds) for each in settings}
    if counts == {1}:
        note += "Each line is a single seed."
    else:
        note += BAND_NOTE + (f" Each has {counts.copy().pop()} seeds." if len(counts) == 1 else "")
    ends = median(float(each.curve["quality"].iloc[-1]) for each in settings)
    perfect = max(float(each.curve["high"].max()) for each in settings) >= 1
    error = metric == "accuracy" and ends > ERROR_AXIS_ACCURACY and not perfect
    look, series = StyleMap(settings), []
    for number, (label, each) in enumerate(zip(names(settings), settings, strict=True)):
        curve = each.curve[(each.curve[key] > 0) | (axis.scale != "log")]
        shown = label if len(counts) == 1 else f"{label} · {counted(len(each.seeds), 'seed')}"
        y, low, high = (
            [scaled(value, metric, error) for value in curve[part]]
            for part in ("quality", "low", "high")
        )
        several = len(each.seeds) > 1
        series.append(
            Series(
                shown + (remarks[number] if remarks else ""),
                look.of(each),
                list(curve[key] / size),
                y,
                (high if error else low) if several else None,
                (low if error else high) if several else None,
                [f"epoch {epoch:g}" for epoch in curve["epoch"]],
            )
        )
    what = ERROR if error else AXIS[metric]
    values = [float(y) for each in series for y in (*each.y, *(each.low or ()), *(each.high or ()))]
    known = [value for value in values if math.isfinite(value)]
    log = (error or metric == "loss") and 0 < MAX_LOSS_RATIO * min(known) < max(known)
    ticks = ticks_between(min(known), max(known)) if log else ()
    words = [part for part in facet if part]
    return Plot(
        file_name(metric, "against", name, *words),
        f"{what.removesuffix(' in %')} {title} · {kinds(settings)}{on_cluster(settings)}",
        note,
        axis,
        Axis(what, "log" if log else "linear", ticks),
        series,
    )


def scaled(quality: float, metric: str, error: bool) -> float:
    """Return a quality in the unit of its axis, where an error is what an accuracy lacks."""
    value = FACTOR[metric] * quality
    return 100.0 - value if error else value
