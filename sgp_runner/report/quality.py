"""Plots of the quality reached: against time, epochs and bytes, and the time to a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sgp_runner.report.figure import Axis, Plot, Series
from sgp_runner.report.parts import (
    CLOCK,
    Look,
    byte_unit,
    facets,
    file_name,
    folded,
    kinds,
    time_unit,
)
from sgp_runner.report.ranking import Ranking
from sgp_runner.report.settings import Setting, labels
from sgp_runner.utils.units import counted

AXIS = {"accuracy": "accuracy in %", "bleu": "BLEU", "loss": "loss"}
FACTOR = {"accuracy": 100.0, "bleu": 1.0, "loss": 1.0}
WIDE = 10  # times the fastest: from here on an axis of times is logarithmic
BAND = "Line: mean over the seeds. Band: from the lowest seed to the highest."


def against_time(settings: Sequence[Setting], look: Look) -> Iterator[Plot]:
    for name, members in facets(
        settings, lambda each: (each.model, each.data, each.metric, each.clock)
    ).items():
        unit, size = time_unit(max(each.curve["time_s"].max() for each in members))
        axis = Axis(f"{CLOCK[name[3]]} in {unit}", from_zero=True)
        yield quality_plot(
            "time", f"against {CLOCK[name[3]]}", members, "time_s", size, axis, look, name
        )


def against_epochs(settings: Sequence[Setting], look: Look) -> Iterator[Plot]:
    axis = Axis("epochs", from_zero=True)
    for name, members in facets(
        settings, lambda each: (each.model, each.data, each.metric)
    ).items():
        yield quality_plot("epochs", "against epochs", members, "epoch", 1.0, axis, look, name)


def against_bytes(settings: Sequence[Setting], look: Look) -> Iterator[Plot]:
    sent = [each for each in settings if each.curve["bytes"].max() > 0]
    for name, members in facets(sent, lambda each: (each.model, each.data, each.metric)).items():
        unit, size = byte_unit(max(each.curve["bytes"].max() for each in members))
        axis = Axis(f"{unit} sent per node", from_zero=True)
        yield quality_plot(
            "bytes", "against bytes sent per node", members, "bytes", size, axis, look, name
        )


def quality_plot(
    name: str,
    against: str,
    settings: Sequence[Setting],
    column: str,
    size: float,
    axis: Axis,
    look: Look,
    facet: tuple[str, ...],
) -> Plot:
    metric = settings[0].metric
    counts = {len(each.seeds) for each in settings}
    if counts == {1}:
        note = "Each line is a single seed."
    else:
        note = BAND + (f" Each has {counts.copy().pop()} seeds." if len(counts) == 1 else "")
    series = []
    for label, each in zip(labels(settings), settings, strict=True):
        curve, factor = each.curve, FACTOR[metric]
        several = len(each.seeds) > 1
        series.append(
            Series(
                label if len(counts) == 1 else f"{label} · {counted(len(each.seeds), 'seed')}",
                look.of(each),
                list(curve[column] / size),
                list(factor * curve["quality"]),
                list(factor * curve["low"]) if several else None,
                list(factor * curve["high"]) if several else None,
                [f"epoch {epoch:g}" for epoch in curve["epoch"]],
            )
        )
    positive = metric == "loss" and min(min(each.curve["low"]) for each in settings) > 0
    return Plot(
        file_name(metric, "against", name, *facet[3:], *facet[:2]),
        f"{AXIS[metric].removesuffix(' in %')} {against} · {kinds(settings)}",
        note,
        axis,
        Axis(AXIS[metric], "log" if positive else "linear"),
        series,
    )


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
    note = f"The target is {ranking.target.rule}. Points: mean over the seeds that reach it; "
    note += "bars: from the fastest to the slowest."
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
        Axis(f"{CLOCK[ranking.clock]} in {unit}", "log" if wide else "linear", from_zero=not wide),
        Axis("", "category"),
        series,
        "x",
        legend=False,
    )


def where(ranking: Ranking) -> str:
    return ", ".join(filter(None, (ranking.task, ranking.cluster)))
