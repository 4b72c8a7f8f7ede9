"""Plots against the number of nodes: time per iteration, speed-up, efficiency."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sgp_runner.report.plots.bars import spread_of, time_per_iteration
from sgp_runner.report.plots.figure import Axis, Plot, Series, Style, labelled
from sgp_runner.report.plots.style import StyleMap, axis_over, nodes_axis, select_lines, stars_of
from sgp_runner.report.read.naming import (
    CLOCK,
    file_name,
    group_by,
    kinds,
    lines_over_nodes,
    on_cluster,
    timed_models,
)
from sgp_runner.report.read.published import Pair
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.utils.units import counted


def per_iteration(settings: Sequence[RunGroup], pairs: Sequence[Pair]) -> Iterator[Plot]:
    for (model, data, clock, timed, cluster), members in by_machines(settings).items():
        theirs = [
            pair
            for pair in pairs
            if pair.comparable and pair.metric == "ms_per_iteration" and pair.setting in members
        ]
        if len({setting.nodes for setting in members}) == 1:
            yield time_per_iteration(members, theirs)
            continue
        lines = sorted(lines_over_nodes(members), key=slowness)
        drawn = select_lines(lines, algorithm_of)
        look, series = StyleMap([setting for _, line in drawn for setting in line]), []
        for label, line in drawn:
            ranges = [setting.iteration_range for setting in line]
            series.append(
                Series(
                    label,
                    look.of_method(line[0]),
                    [int(setting.nodes) for setting in line],
                    [setting.mean("ms_per_iteration") for setting in line],
                    [low for low, _ in ranges],
                    [high for _, high in ranges],
                    [counted(len(setting.seeds), "seed") for setting in line],
                )
            )
        if theirs:
            series.append(stars_of(theirs, x=[int(pair.setting.nodes) for pair in theirs]))
        ys = [float(y) for one in series for y in one.y]
        ranged = any(setting.ranged for setting in members)
        yield labelled(
            Plot(
                file_name(
                    "time per iteration", *filter(None, (clock, model, data, timed, cluster))
                ),
                f"time per iteration against nodes · {kinds(members)}{on_cluster(members)}",
                f"{CLOCK[clock].capitalize()}. Points: mean over the seeds"
                f"{', at the lowest rate; bands' if ranged else '; bars'}: {spread_of(members)}."
                f"{' Stars: published.' if theirs else ''}",
                nodes_axis(members),
                axis_over(f"{CLOCK[clock]} per iteration in ms", ys),
                series,
                "band" if ranged else "y",
                rest=[label for label, line in lines if (label, line) not in drawn],
            )
        )


def by_machines(settings: Sequence[RunGroup]) -> Mapping[tuple[str, ...], list[RunGroup]]:
    return group_by(
        settings,
        lambda setting: (
            setting.model,
            setting.data,
            setting.clock,
            timed_models([setting]),
            setting.cluster,
        ),
    )


def algorithm_of(line: tuple[str, list[RunGroup]]) -> str:
    return str(line[1][0].algorithm)


def slowness(line: tuple[str, list[RunGroup]]) -> tuple[int, float]:
    """Return the sort key of a line: first its largest number of nodes, then its time on them."""
    last = line[1][-1]
    return -int(last.nodes), last.mean("ms_per_iteration")


def speed_up(settings: Sequence[RunGroup]) -> Iterator[Plot]:
    for (model, data, clock, timed, cluster), members in by_machines(settings).items():
        every = [
            (label, line)
            for label, line in sorted(lines_over_nodes(members), key=slowness)
            if len({setting.nodes for setting in line}) > 1
        ]
        if not every:
            continue
        lines = select_lines(every, algorithm_of)
        hidden = [label for label, line in every if (label, line) not in lines]
        line_settings = [setting for _, line in lines for setting in line]
        look = StyleMap(line_settings)
        starts = sorted({int(line[0].nodes) for _, line in lines})
        most = max(int(setting.nodes) for setting in line_settings)
        series = []
        for label, line in lines:
            nodes = [int(setting.nodes) for setting in line]
            rates = [
                setting.nodes * setting.batch_size / setting.mean("ms_per_iteration")
                for setting in line
            ]
            series.append(
                Series(
                    label if len(starts) == 1 else f"{label} · from {nodes[0]}",
                    look.of_method(line[0]),
                    nodes,
                    [rate / rates[0] for rate in rates],
                    texts=[f"relative to {counted(nodes[0], 'node')}"] * len(nodes),
                )
            )
        dotted = Style(None, None, dash="dot")
        ideal = [
            Series(
                "ideal" if len(starts) == 1 else f"ideal · from {start}",
                dotted,
                [start, most],
                [1.0, most / start],
            )
            for start in starts
        ]
        top = max(float(y) for one in (*series, *ideal) for y in one.y)
        powers = [2.0**power for power in range(max(1, math.ceil(math.log2(top))) + 1)]
        efficiencies = [
            replace(
                one,
                y=[
                    100 * float(y) * float(one.x[0]) / float(x)
                    for x, y in zip(one.x, one.y, strict=True)
                ],
            )
            for one in series
        ]
        for what, axis, drawn in (
            ("speed-up", Axis("speed-up", "log", powers), [*series, *ideal]),
            (
                "efficiency",
                Axis("efficiency in %", from_zero=True),
                [*efficiencies, Series("ideal", dotted, [starts[0], most], [100.0, 100.0])],
            ),
        ):
            yield labelled(
                Plot(
                    file_name(what, *filter(None, (clock, model, data, timed, cluster))),
                    f"{what} against nodes · {kinds(line_settings)}{on_cluster(line_settings)}",
                    f"From {CLOCK[clock]}, mean over the seeds. "
                    "Each line begins at the method's smallest number of nodes.",
                    nodes_axis(line_settings),
                    axis,
                    drawn,
                    rest=hidden,
                )
            )
