"""Plots of the quality reached against time, epochs and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from types import MappingProxyType
from typing import Literal

from sgp_runner.report.plots.figure import Axis, Plot, Series, Style, labelled
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
AXIS_NOTE = f"The axis ends at {AXIS_END_MEDIANS} times the median time to the target."
BAND_NOTE = "Line: mean over the seeds. Band: from the lowest seed to the highest."
RANGE_NOTE = (
    "Line: mean over the seeds at the lowest rate of the links. Band: from the highest rate to the "
    "lowest, and over the seeds."
)


def against_time(ranking: Ranking) -> Iterator[Plot]:
    """Plot quality against time for the settings of a ranking."""
    ordered = [setting for setting in ranking.settings if len(setting.curve)]
    if not ordered:
        return
    times = {id(row.setting): row.time for row in ranking.rows if row.time > 0}
    members = select_lines(ordered, lambda setting: setting.algorithm)
    begins, ends = ends_of(members, "time_s")
    reach = [times.get(id(setting), end) for setting, end in zip(members, ends, strict=True)]
    scale, axis_end = choose_axis(reach, ends, begins)
    unit, size = time_unit(axis_end or max(ends))
    clock = CLOCK[ranking.clock]
    yield curves(
        ordered,
        ("time", f"against {clock}"),
        ("time_s", size),
        Axis(f"{clock} in {unit}", scale, span=(0.0, axis_end / size) if axis_end else None),
        (ranking.clock, *ranking.name_parts[:-1]),
        times,
        ranking.target,
    )


def ends_of(settings: Sequence[RunGroup], column: str) -> tuple[list[float], list[float]]:
    """Return the lowest and the highest value of a column for each curve."""
    columns = [setting.curve[column].astype(float) for setting in settings]
    return [column.min() for column in columns], [column.max() for column in columns]


def choose_axis(
    reach: Sequence[float], ends: Sequence[float], begins: Sequence[float]
) -> tuple[Literal["linear", "log"], float | None]:
    """Choose the scale and the end of the time axis so that no line compresses the others.

    A linear axis ends at `AXIS_END_MEDIANS` times the median reach, unless the last line is at most
    a third longer. The axis is logarithmic if a linear one would cut off more than one line in
    `LINES_PER_CUT_LINE` or the start of any line, or if the fastest line is more than
    `MAX_AXIS_RATIO` times as fast as the median.

    reach: time at which each line reaches the target, or ends
    begins, ends: first and last time of each line
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
    return "linear", end if 3 * max(ends) > 4 * end else None


def against_epochs(settings: Sequence[RunGroup]) -> Iterator[Plot]:
    """Plot quality against epochs, the best setting first."""
    for facet, members in by_task(settings).items():
        axis = wide_axis("epochs", members, "epoch")
        yield curves(members, ("epochs", "against epochs"), ("epoch", 1.0), axis, facet)


def against_bytes(settings: Sequence[RunGroup]) -> Iterator[Plot]:
    """Plot quality against the bytes that a node sent, the best setting first."""
    sent = [setting for setting in settings if setting.curve["bytes"].max() > 0]
    for facet, members in by_task(sent).items():
        unit, size = byte_unit(max(setting.curve["bytes"].max() for setting in members))
        axis = wide_axis(f"{unit} sent per node", members, "bytes")
        yield curves(
            members, ("bytes", "against bytes sent per node"), ("bytes", size), axis, facet
        )


def wide_axis(title: str, ordered: Sequence[RunGroup], column: str) -> Axis:
    """Return an axis that is logarithmic if some curves are much longer than others."""
    _, ends = ends_of(select_lines(ordered, lambda setting: setting.algorithm), column)
    return Axis(title, "log" if max(ends) > MAX_AXIS_RATIO * min(ends) else "linear")


def curves(
    ordered: Sequence[RunGroup],
    against: tuple[str, str],
    column: tuple[str, float],
    axis: Axis,
    facet: tuple[str, ...],
    times: Mapping[int, float] = MappingProxyType({}),
    target: Target | None = None,
) -> Plot:
    """Plot quality against a column of the curves, for at most `MAX_LINES` of the settings.

    ordered: settings, the best first
    against: short name and title of the x axis
    column: column of the curves on the x axis, and the size of the axis unit
    axis: the x axis; its ticks are chosen here
    facet: values that these settings share
    times: `id` of each setting that reaches the target -> its seconds to the target
    target: quality to draw as a dotted line
    """
    settings = select_lines(ordered, lambda setting: setting.algorithm)
    metric, (name, title), (key, size) = settings[0].metric, against, column
    begins, ends = ends_of(settings, key)
    if ranged := key == "time_s" and any(setting.ranged for setting in settings):
        begins += ends_of([setting for setting in settings if setting.ranged], "fastest_s")[0]
    if axis.scale == "log" and min(begins) > 0:
        axis = replace(axis, ticks=ticks_between(min(begins) / size, max(ends) / size))
    else:
        axis = replace(axis, scale="linear", from_zero=True)
    counts = {len(setting.seeds) for setting in settings}
    note = (
        AXIS_NOTE if axis.span is not None else "",
        RANGE_NOTE if ranged else "",
        "Each line is a single seed." if counts == {1} else "" if ranged else BAND_NOTE,
        f"Each has {max(counts)} seeds." if len(counts) == 1 and counts != {1} else "",
    )
    last = median(float(setting.curve["quality"].iloc[-1]) for setting in settings)
    perfect = max(float(setting.curve["high"].max()) for setting in settings) >= 1
    error = metric == "accuracy" and last > ERROR_AXIS_ACCURACY and not perfect
    look, series = StyleMap(settings), []
    for label, setting in zip(names(settings), settings, strict=True):
        curve = setting.curve[(setting.curve[key] > 0) | (axis.scale != "log")]
        line_name = (
            label if len(counts) == 1 else f"{label} · {counted(len(setting.seeds), 'seed')}"
        )
        y, low, high = (
            [scaled(value, metric, error) for value in curve[part]]
            for part in ("quality", "low", "high")
        )
        several = len(setting.seeds) > 1
        time = times.get(id(setting), 0.0)
        if axis.span is not None and time > size * axis.span[1]:
            unbroken = duration(time).replace(" ", "\N{NO-BREAK SPACE}")
            line_name += f" ({unbroken})"
        series.append(
            Series(
                line_name,
                look.of(setting),
                list(curve[key] / size),
                y,
                (high if error else low) if several else None,
                (low if error else high) if several else None,
                [f"epoch {epoch:g}" for epoch in curve["epoch"]],
                list(curve["fastest_s"] / size) if ranged else None,
            )
        )
    what = ERROR if error else AXIS[metric]
    xs = [float(x) for line in series for x in line.x]
    values = [float(y) for line in series for y in (*line.y, *(line.low or ()), *(line.high or ()))]
    finite = [value for value in values if math.isfinite(value)]
    log = (error or metric == "loss") and 0 < MAX_LOSS_RATIO * min(finite) < max(finite)
    ticks = ticks_between(min(finite), max(finite)) if log else ()
    if target is not None:
        begin, end = axis.span or (min(xs) if axis.scale == "log" else 0.0, max(xs))
        levels = [scaled(target.value, metric, error)] * 2
        series.append(Series(target.text, Style(None, None, dash="dot"), [begin, end], levels))
    return labelled(
        Plot(
            file_name(metric, "against", name, *filter(None, facet)),
            f"{what.removesuffix(' in %')} {title} · {kinds(settings)}{on_cluster(settings)}",
            " ".join(filter(None, note)),
            axis,
            Axis(what, "log" if log else "linear", ticks),
            series,
            rest=[
                f"{label}: {duration(times[id(setting)])}" if id(setting) in times else label
                for label, setting in zip(names(ordered), ordered, strict=True)
                if setting not in settings
            ],
        )
    )


def by_task(settings: Sequence[RunGroup]) -> Mapping[tuple[str, ...], list[RunGroup]]:
    return group_by(
        settings,
        lambda setting: (
            f"{setting.model} on {setting.data}",
            timed_models([setting]),
            setting.cluster,
        ),
    )


def scaled(quality: float, metric: str, error: bool) -> float:
    """Return a quality in the unit of its axis; an error is 100 % minus the accuracy."""
    value = FACTOR[metric] * quality
    return 100.0 - value if error else value
