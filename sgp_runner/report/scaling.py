"""Plots against the number of nodes: time per iteration, speed-up, efficiency."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sgp_runner.report.figure import FILLS, Axis, Plot, Series, Style
from sgp_runner.report.parts import (
    CLOCK,
    Look,
    facets,
    file_name,
    folded,
    kinds,
    lines_over_nodes,
    nodes_axis,
    on_cluster,
)
from sgp_runner.report.runs import PUBLISHED
from sgp_runner.report.settings import Setting, labels
from sgp_runner.utils.units import counted

if TYPE_CHECKING:
    from sgp_runner.report.comparison import Pair


def per_iteration(settings: Sequence[Setting], pairs: Sequence[Pair]) -> Iterator[Plot]:
    for (model, data, clock, cluster), members in facets(
        settings, lambda each: (each.model, each.data, each.clock, each.cluster)
    ).items():
        theirs = [
            pair
            for pair in pairs
            if pair.comparable and pair.metric == "ms_per_iteration" and pair.setting in members
        ]
        if len({each.nodes for each in members}) == 1:
            yield on_one_number_of_nodes(members, theirs)
            continue
        look, series = Look(members), []
        for label, line in lines_over_nodes(members):
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
        yield Plot(
            file_name("time per iteration", *filter(None, (clock, model, data, cluster))),
            f"time per iteration against nodes · {kinds(members)}{on_cluster(members)}",
            f"{CLOCK[clock].capitalize()}. Points: mean over the seeds; "
            "bars: from the lowest seed to the highest.",
            nodes_axis(members),
            Axis(f"{CLOCK[clock]} per iteration in ms", from_zero=True),
            series,
            "y",
        )


def on_one_number_of_nodes(settings: Sequence[Setting], pairs: Sequence[Pair]) -> Plot:
    """Return bars, the fastest first."""
    ordered = sorted(settings, key=lambda each: each.mean("ms_per_iteration"))
    first, look, series = ordered[0], Look(ordered), []
    for label, each in zip(labels(ordered), ordered, strict=True):
        low, high = each.range("ms_per_iteration")
        mean = each.mean("ms_per_iteration")
        style = look.of(each, line=False)
        seeds = counted(len(each.seeds), "seed")
        series.append(Series(label, style, [mean], [folded(label)], [low], [high], [seeds]))
    if pairs:
        names = {
            id(each): folded(name) for name, each in zip(labels(ordered), ordered, strict=True)
        }
        series.append(
            Series(
                PUBLISHED,
                Style(fill=FILLS[PUBLISHED]),
                [pair.published.value for pair in pairs],
                [names[id(pair.setting)] for pair in pairs],
                texts=[f"{pair.row}, {pair.published.origin}" for pair in pairs],
            )
        )
    where = (first.clock, first.model, first.data, first.cluster)
    on = counted(first.nodes, "node")
    return Plot(
        file_name("time per iteration", *filter(None, where)),
        f"time per iteration on {on} · {kinds(ordered)}{on_cluster(ordered)}",
        f"{CLOCK[first.clock].capitalize()}. Bars: mean over the seeds; lines: from the lowest "
        f"seed to the highest.{' Stars: published.' if pairs else ''}",
        Axis(f"{CLOCK[first.clock]} per iteration in ms", from_zero=True),
        Axis("", "category"),
        series,
        "x",
        legend=False,
        bars=True,
    )


def speed_up(settings: Sequence[Setting]) -> Iterator[Plot]:
    for (model, data, clock, cluster), members in facets(
        settings, lambda each: (each.model, each.data, each.clock, each.cluster)
    ).items():
        lines = [
            (label, line)
            for label, line in lines_over_nodes(members)
            if len({each.nodes for each in line}) > 1
        ]
        if not lines:
            continue
        look = Look(members)
        speeds, efficiencies = [], []
        for label, line in lines:
            x = [int(each.nodes) for each in line]
            rates = [each.nodes * each.batch_size / each.mean("ms_per_iteration") for each in line]
            speed = [rate / rates[0] for rate in rates]
            texts = [f"relative to {counted(x[0], 'node')}"] * len(x)
            name = f"{label} · from {x[0]}"
            speeds.append(Series(name, look.of_method(line[0]), x, speed, texts=texts))
            ratio = [100 * value * x[0] / n for value, n in zip(speed, x, strict=True)]
            efficiencies.append(Series(name, look.of_method(line[0]), x, ratio, texts=texts))
        shown = [each for _, line in lines for each in line]
        nodes = sorted({int(each.nodes) for each in shown})
        for first in sorted({int(line[0].nodes) for _, line in lines}):
            ends = [first, nodes[-1]]
            speeds.append(
                Series(
                    f"ideal · from {first}",
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
            yield Plot(
                file_name(what, *filter(None, (clock, model, data, cluster))),
                title,
                note,
                nodes_axis(shown),
                axis,
                series,
            )


def powers_of_two(top: float) -> list[float]:
    return [2.0**power for power in range(max(1, math.ceil(math.log2(top))) + 1)]
