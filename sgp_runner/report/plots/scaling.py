"""Plots against the number of nodes: time per iteration, speed-up, efficiency."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sgp_runner.report.plots.figure import FILLS, Axis, Label, Plot, Series, Style
from sgp_runner.report.plots.labels import labelled
from sgp_runner.report.plots.style import StyleMap, axis_over, nodes_axis, select_lines
from sgp_runner.report.read.comparison import Pair
from sgp_runner.report.read.naming import (
    CLOCK,
    file_name,
    group_by,
    kinds,
    lines_over_nodes,
    names,
    on_cluster,
    three_digits,
    timed_models,
    wrap_label,
)
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.report.read.runs import PUBLISHED
from sgp_runner.utils.units import counted


def per_iteration(settings: Sequence[RunGroup], pairs: Sequence[Pair]) -> Iterator[Plot]:
    for (model, data, clock, timed, cluster), members in by_machines(settings).items():
        theirs = [
            pair
            for pair in pairs
            if pair.comparable and pair.metric == "ms_per_iteration" and pair.setting in members
        ]
        if len({each.nodes for each in members}) == 1:
            yield on_one_number_of_nodes(members, theirs)
            continue
        lines = sorted(lines_over_nodes(members), key=slowness)
        drawn = select_lines(lines, algorithm_of)
        look, series = StyleMap([each for _, line in drawn for each in line]), []
        for label, line in drawn:
            ranges = [each.range("ms_per_iteration") for each in line]
            series.append(
                Series(
                    label,
                    look.of_method(line[0]),
                    [int(each.nodes) for each in line],
                    [each.mean("ms_per_iteration") for each in line],
                    [low for low, _ in ranges],
                    [high for _, high in ranges],
                    [counted(len(each.seeds), "seed") for each in line],
                )
            )
        if theirs:
            series.append(
                Series(
                    PUBLISHED,
                    Style(fill=FILLS[PUBLISHED]),
                    [int(pair.setting.nodes) for pair in theirs],
                    [pair.published.value for pair in theirs],
                    texts=[f"{pair.row}, {pair.published.origin}" for pair in theirs],
                )
            )
        shown = [float(y) for each in series for y in each.y]
        plot = Plot(
            file_name("time per iteration", *filter(None, (clock, model, data, timed, cluster))),
            f"time per iteration against nodes · {kinds(members)}{on_cluster(members)}",
            f"{CLOCK[clock].capitalize()}. Points: mean over the seeds; "
            f"bars: from the lowest seed to the highest.{' Stars: published.' if theirs else ''}",
            nodes_axis(members),
            axis_over(f"{CLOCK[clock]} per iteration in ms", shown),
            series,
            "y",
        )
        hidden = [label for label, line in lines if (label, line) not in drawn]
        yield replace(labelled(plot), rest=hidden)


def by_machines(settings: Sequence[RunGroup]) -> Mapping[tuple[str, ...], list[RunGroup]]:
    return group_by(
        settings,
        lambda each: (each.model, each.data, each.clock, timed_models([each]), each.cluster),
    )


def algorithm_of(line: tuple[str, list[RunGroup]]) -> str:
    return str(line[1][0].algorithm)


def slowness(line: tuple[str, list[RunGroup]]) -> tuple[int, float]:
    """Sort lines by the time on the most nodes, of those with the most nodes first."""
    last = line[1][-1]
    return -int(last.nodes), last.mean("ms_per_iteration")


def on_one_number_of_nodes(settings: Sequence[RunGroup], pairs: Sequence[Pair]) -> Plot:
    """Return bars, the fastest first."""
    every = sorted(settings, key=lambda each: each.mean("ms_per_iteration"))
    ordered = select_lines(every, lambda each: str(each.algorithm))
    first, look, series = ordered[0], StyleMap(ordered), []
    rows, values = {}, []
    for name, each in zip(names(ordered), ordered, strict=True):
        low, high = each.range("ms_per_iteration")
        mean, row = each.mean("ms_per_iteration"), wrap_label(name)
        style, seeds = look.of(each, line=False), counted(len(each.seeds), "seed")
        series.append(Series(name, style, [mean], [row], [low], [high], [seeds]))
        values.append(Label(f"{three_digits(mean)} ms", None, None, row))
        rows[id(each)] = row
    pairs = [pair for pair in pairs if id(pair.setting) in rows]
    if pairs:
        series.append(
            Series(
                PUBLISHED,
                Style(fill=FILLS[PUBLISHED]),
                [pair.published.value for pair in pairs],
                [rows[id(pair.setting)] for pair in pairs],
                texts=[f"{pair.row}, {pair.published.origin}" for pair in pairs],
            )
        )
    where = (first.clock, first.model, first.data, timed_models([first]), first.cluster)
    times = [float(x) for each in series for x in each.x]
    axis = axis_over(f"{CLOCK[first.clock]} per iteration in ms", times)
    bars = axis.scale == "linear"
    on = counted(first.nodes, "node")
    return Plot(
        file_name("time per iteration", *filter(None, where)),
        f"time per iteration on {on} · {kinds(ordered)}{on_cluster(ordered)}",
        f"{CLOCK[first.clock].capitalize()}. {'Bars' if bars else 'Points'}: mean over the seeds; "
        f"lines: from the lowest seed to the highest.{' Stars: published.' if pairs else ''}",
        axis,
        Axis("", "category"),
        series,
        "x",
        bars=bars,
        labels=values,
        rest=[name for name, each in zip(names(every), every, strict=True) if each not in ordered],
    )


def speed_up(settings: Sequence[RunGroup]) -> Iterator[Plot]:
    for (model, data, clock, timed, cluster), members in by_machines(settings).items():
        every = [
            (label, line)
            for label, line in sorted(lines_over_nodes(members), key=slowness)
            if len({each.nodes for each in line}) > 1
        ]
        if not every:
            continue
        lines = select_lines(every, algorithm_of)
        hidden = [label for label, line in every if (label, line) not in lines]
        look = StyleMap([each for _, line in lines for each in line])
        one_start = len({int(line[0].nodes) for _, line in lines}) == 1
        speeds, efficiencies = [], []
        for label, line in lines:
            x = [int(each.nodes) for each in line]
            rates = [each.nodes * each.batch_size / each.mean("ms_per_iteration") for each in line]
            speed = [rate / rates[0] for rate in rates]
            texts = [f"relative to {counted(x[0], 'node')}"] * len(x)
            name = label if one_start else f"{label} · from {x[0]}"
            speeds.append(Series(name, look.of_method(line[0]), x, speed, texts=texts))
            ratio = [100 * value * x[0] / n for value, n in zip(speed, x, strict=True)]
            efficiencies.append(Series(name, look.of_method(line[0]), x, ratio, texts=texts))
        shown = [each for _, line in lines for each in line]
        nodes = sorted({int(each.nodes) for each in shown})
        for first in sorted({int(line[0].nodes) for _, line in lines}):
            ends = [first, nodes[-1]]
            speeds.append(
                Series(
                    "ideal" if one_start else f"ideal · from {first}",
                    Style(None, None, dash="dot"),
                    ends,
                    [n / first for n in ends],
                )
            )
        efficiencies.append(
            Series("ideal", Style(None, None, dash="dot"), [nodes[0], nodes[-1]], [100.0, 100.0])
        )
        where = f"{kinds(shown)}{on_cluster(shown)}"
        note = (
            f"From {CLOCK[clock]}, mean over the seeds. "
            "Each line begins at the method's smallest number of nodes."
        )
        scale = Axis(
            "speed-up", "log", powers_of_two(max(float(y) for each in speeds for y in each.y))
        )
        for what, axis, series in (
            ("speed-up", scale, speeds),
            ("efficiency", Axis("efficiency in %", from_zero=True), efficiencies),
        ):
            title = f"{what} against nodes · {where}"
            name = file_name(what, *filter(None, (clock, model, data, timed, cluster)))
            plot = Plot(name, title, note, nodes_axis(shown), axis, series)
            yield replace(labelled(plot), rest=hidden)


def powers_of_two(top: float) -> list[float]:
    return [2.0**power for power in range(max(1, math.ceil(math.log2(top))) + 1)]
