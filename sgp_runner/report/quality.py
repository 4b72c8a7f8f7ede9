"""Plots of the quality reached: against time, epochs and bytes, and the time to a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from sgp_runner.report.figure import Axis, Plot, Series, Style
from sgp_runner.report.parts import (
    CLOCK,
    Look,
    byte_unit,
    facets,
    file_name,
    folded,
    kinds,
    on_cluster,
    ticks_between,
    time_unit,
)
from sgp_runner.report.ranking import Ranking, Target
from sgp_runner.report.settings import Setting, labels
from sgp_runner.utils.units import counted, duration

AXIS = {"accuracy": "accuracy in %", "bleu": "BLEU", "loss": "loss"}
FACTOR = {"accuracy": 100.0, "bleu": 1.0, "loss": 1.0}
ERROR = "error in %"
CUT = 3  # times the median time to the target: where an axis of times may end
HARD = 0.9  # accuracies above it are shown as errors, on a logarithmic axis
WIDE = 10  # times the fastest: from here on an axis of times is logarithmic
BAND = "Line: mean over the seeds. Band: from the lowest seed to the highest."


def against_time(ranking: Ranking, look: Look) -> Iterator[Plot]:
    """Plot the curves of a ranking; the axis of time ends where slow settings would squeeze it."""
    members = [each for each in ranking.settings if len(each.curve)]
    if not members:
        return
    ends = [float(each.curve["time_s"].max()) for each in members]
    times = [row.time for row in ranking.rows if row.times]
    end = CUT * median(times) if times else max(ends)
    cut = max(ends) > end
    unit, size = time_unit(min(end, max(ends)))
    late = {
        id(row.setting): f" (there after {duration(row.time)})"
        for row in ranking.rows
        if cut and row.times and row.time > end
    }
    clock = CLOCK[ranking.clock]
    note = f"The axis ends at {CUT} times the median time to the target. " if cut else ""
    plot = quality_plot(
        ("time", f"against {clock}"),
        members,
        ("time_s", size),
        Axis(f"{clock} in {unit}", from_zero=True, end=end / size if cut else None),
        look,
        (ranking.clock, ranking.task, ranking.cluster),
        note,
        [late.get(id(each), "") for each in members],
    )
    if ranking.target is not None:
        ends_at = (end if cut else max(ends)) / size
        plot = with_line(plot, ranking.target, ends_at)
    yield plot


def with_line(plot: Plot, target: Target, until: float) -> Plot:
    """Return the plot with a dotted line at the target."""
    y = scaled(target.value, target.metric, plot.y.title == ERROR)
    line = Series(target.words, Style(None, None, dash="dot"), [0, until], [y, y])
    return replace(plot, series=[*plot.series, line])


def against_epochs(settings: Sequence[Setting], look: Look) -> Iterator[Plot]:
    axis = Axis("epochs", from_zero=True)
    for name, members in by_task(settings).items():
        where = ("epochs", "against epochs")
        yield quality_plot(where, members, ("epoch", 1.0), axis, look, name)


def against_bytes(settings: Sequence[Setting], look: Look) -> Iterator[Plot]:
    sent = [each for each in settings if each.curve["bytes"].max() > 0]
    for name, members in by_task(sent).items():
        unit, size = byte_unit(max(each.curve["bytes"].max() for each in members))
        axis = Axis(f"{unit} sent per node", from_zero=True)
        where = ("bytes", "against bytes sent per node")
        yield quality_plot(where, members, ("bytes", size), axis, look, name)


def by_task(settings: Sequence[Setting]) -> Mapping[tuple[str, ...], list[Setting]]:
    return facets(settings, lambda each: (f"{each.model} on {each.data}", each.cluster))


def quality_plot(
    against: tuple[str, str],
    settings: Sequence[Setting],
    column: tuple[str, float],
    axis: Axis,
    look: Look,
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
        note += BAND + (f" Each has {counts.copy().pop()} seeds." if len(counts) == 1 else "")
    error = metric == "accuracy" and all(
        each.curve["quality"].iloc[-1] > HARD and each.curve["high"].max() < 1 for each in settings
    )
    series = []
    for number, (label, each) in enumerate(zip(labels(settings), settings, strict=True)):
        curve = each.curve
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
    positive = metric == "loss" and min(min(each.curve["low"]) for each in settings) > 0
    what = ERROR if error else AXIS[metric]
    shown_y = [float(y) for each in series for y in each.y]
    ticks = ticks_between(min(shown_y), max(shown_y)) if error else ()
    words = [part for part in facet if part]
    return Plot(
        file_name(metric, "against", name, *words),
        f"{what.removesuffix(' in %')} {title} · {kinds(settings)}{on_cluster(settings)}",
        note,
        axis,
        Axis(what, "log" if positive or error else "linear", ticks),
        series,
    )


def scaled(quality: float, metric: str, error: bool) -> float:
    """Return a quality in the unit of its axis, where an error is what an accuracy lacks."""
    value = FACTOR[metric] * quality
    return 100.0 - value if error else value


def time_to_target(ranking: Ranking, look: Look) -> Iterator[Plot]:
    """Plot a ranking, the fastest first; nothing if no setting reaches the target."""
    there = [row for row in ranking.rows if row.times]
    if ranking.target is None or not there:
        return
    unit, size = time_unit(there[0].time)
    several = len({row.setting.nodes for row in ranking.rows}) > 1
    names = [f"{row.name} · {row.setting.nodes} nodes" if several else row.name for row in there]
    wide = max(row.time for row in there) > WIDE * there[0].time
    never = [row.name for row in ranking.rows if not row.times]
    note = f"The target is {ranking.target.rule}. {'Points' if wide else 'Bars'}: mean over the "
    note += "seeds that reach it; lines: from the fastest to the slowest."
    note += f" Not reached by {', '.join(never)}." if never else ""
    series = [
        Series(
            name,
            look.of(row.setting, line=False),
            [row.time / size],
            [folded(name)],
            [min(row.times) / size],
            [max(row.times) / size],
            [f"{len(row.times)} of {counted(len(row.setting.seeds), 'seed')}"],
        )
        for name, row in zip(names, there, strict=True)
    ]
    words = ranking.task, ranking.cluster, ranking.clock
    title = f"{CLOCK[ranking.clock]} to {ranking.target.words} · {where(ranking)}"
    yield Plot(
        file_name("time to target", *filter(None, words)),
        title,
        note,
        Axis(
            f"{CLOCK[ranking.clock]} in {unit}",
            "log" if wide else "linear",
            ticks_between(there[0].time / size, max(row.time for row in there) / size)
            if wide
            else (),
            from_zero=not wide,
        ),
        Axis("", "category"),
        series,
        "x",
        legend=False,
        bars=not wide,
    )


def where(ranking: Ranking) -> str:
    return f"{ranking.task}{on_cluster(ranking.settings)}"
