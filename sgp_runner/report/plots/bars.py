"""Plots with a row for each setting, network or published figure.

They show the time to a target, the time per iteration, and published figures next to the figures
of our runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sgp_runner.report.plots.figure import FILLS, Axis, Label, Plot, Series, Style
from sgp_runner.report.plots.style import MAX_LINES, StyleMap, axis_over, select_lines, stars_of
from sgp_runner.report.rank.ranking import Ranking, Row
from sgp_runner.report.read.naming import (
    BASELINE,
    CLOCK,
    file_name,
    group_by,
    kinds,
    names,
    on_cluster,
    three_digits,
    time_unit,
    timed_models,
    wrap_label,
)
from sgp_runner.report.read.published import COMPARABLE, UNITS, Pair
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.utils.units import counted, duration

OURS = "#3381ef"  # published figures have the colour of the text
MARKS = {"simulated, fitted to it": "square", "simulated, predicted": "diamond"}
UNIT_SYMBOLS = {"hours": "h", "minutes": "min", "seconds": "s"}


def to_target(rankings: Sequence[Ranking]) -> Iterator[Plot]:
    """Yield, for each task, a plot that compares its networks, then a plot for each ranking."""
    there = [
        ranking
        for ranking in rankings
        if ranking.target is not None and ranking.rows[0].times and not ranking.by_quality
    ]
    for members in group_by(there, lambda ranking: (ranking.task, ranking.clock)).values():
        if len(members) > 1:
            yield networks(members)
    yield from map(time_to_target, there)


def networks(rankings: Sequence[Ranking]) -> Plot:
    """Plot the fastest setting on each network and its baseline; the fastest network is first."""
    ordered = sorted(rankings, key=lambda ranking: ranking.rows[0].time)
    drawn = ordered[:MAX_LINES]
    pairs = [ends_of(ranking) for ranking in drawn]
    unit, size = time_unit(pairs[0][0].time)
    look = StyleMap([row.setting for pair in pairs for row in pair])
    names_of_rows = [wrap_label(network(ranking)) for ranking in drawn]
    rows = [(name, row) for name, pair in zip(names_of_rows, pairs, strict=True) for row in pair]
    series = [
        Series(
            algorithm,
            look.of(members[0][1].setting, line=False),
            [row.time / size for _, row in members],
            [name for name, _ in members],
            [min(row.times) / size for _, row in members],
            [max(row.times) / size for _, row in members],
            [row.name for _, row in members],
        )
        for algorithm, members in group_by(rows, lambda item: item[1].setting.algorithm).items()
    ]
    first = drawn[0]
    assert first.target is not None
    clock = CLOCK[first.clock]
    return plot_rows(
        file_name("fastest", first.task, first.clock),
        f"fastest to {first.target.text} on each network · {first.task}",
        f"The target is {first.target.rule}. The fastest setting on each network, and the one that "
        "its speed-up is relative to; lines: from the fastest seed to the slowest.",
        axis_over(f"{clock} in {unit}", [row.time / size for pair in pairs for row in pair]),
        series,
        names_of_rows,
        [
            "\n".join(f"{row.setting.algorithm} {time_text(row, size, unit)}" for row in pair)
            for pair in pairs
        ],
        [f"{network(ranking)}: {ranking.rows[0].name}" for ranking in ordered[MAX_LINES:]],
    )


def network(ranking: Ranking) -> str:
    """Name the machines of a ranking, or the network of real runs."""
    where = ranking.cluster or str(ranking.settings[0].network)
    return ", ".join(filter(None, (where, ranking.timed)))


def ends_of(ranking: Ranking) -> list[Row]:
    """Return the fastest row and the row that its speed-up is relative to, if another."""
    first = ranking.rows[0]
    others = [row for row in ranking.rows[1:] if row.times and row.name == first.over]
    return [first, *[row for row in others if row.setting.nodes == first.setting.nodes][:1]]


def time_to_target(ranking: Ranking) -> Plot:
    """Plot a ranking, the fastest first."""
    assert ranking.target is not None
    ranked = [row for row in ranking.rows if row.times]
    drawn = select_lines(ranked, lambda row: str(row.setting.algorithm))
    unit, size = time_unit(drawn[0].time)
    clock = CLOCK[ranking.clock]
    axis = axis_over(f"{clock} in {unit}", [row.time / size for row in drawn])
    bars = axis.scale == "linear"
    overs = {row.over for row in drawn if row.over}
    never = [row.name for row in ranking.rows if not row.times]
    more = f" and {len(never) - MAX_LINES} more" if len(never) > MAX_LINES else ""
    shape = "Bars" if bars else "Points"
    spread = spread_of(ranking.settings, "from the fastest to the slowest")
    note = [
        f"The target is {ranking.target.rule}.",
        f"{shape}: mean over the seeds that reach it; lines: {spread}."
        if several_seeds(ranking.settings)
        else f"{shape}: one seed each.",
        *(f"×: speed-up over {over}." for over in overs if len(overs) == 1),
        *([f"Not reached by {', '.join(never[:MAX_LINES])}{more}."] if never else []),
    ]
    least = [  # over the seeds and the rates of the links
        min([*row.times, *row.setting.times_to(ranking.target.value, "fastest_s")]) for row in drawn
    ]
    rows, series = rows_of(
        [row.setting for row in drawn],
        [row.name for row in drawn],
        [
            [time / size for time in (row.time, fastest, max(row.times))]
            for row, fastest in zip(drawn, least, strict=True)
        ],
        [reached(row) for row in drawn],
    )
    return plot_rows(
        file_name("time to target", *ranking.name_parts),
        f"{clock} to {ranking.target.text} · {ranking.task}{on_cluster(ranking.settings)}",
        " ".join(note),
        axis,
        series,
        rows,
        [value_of(row, size, unit, len(overs) == 1) for row in drawn],
        [f"{row.name}: {duration(row.time)}" for row in ranked if row not in drawn],
        bars,
    )


def time_text(row: Row, size: float, unit: str) -> str:
    return f"{three_digits(row.time / size)} {UNIT_SYMBOLS[unit]}"


def value_of(row: Row, size: float, unit: str, with_speed: bool) -> str:
    text = time_text(row, size, unit)
    if with_speed and row.speed_up is not None and row.setting.algorithm != BASELINE:
        text += f", {three_digits(row.speed_up)}×"
    return f"{text}\n{reached(row)}" if row.missing else text


def reached(row: Row) -> str:
    return f"{len(row.times)} of {counted(len(row.setting.seeds), 'seed')}"


def time_per_iteration(settings: Sequence[RunGroup], pairs: Sequence[Pair]) -> Plot:
    """Plot the times of settings on one number of nodes, the fastest first."""
    every = sorted(settings, key=lambda setting: setting.mean("ms_per_iteration"))
    drawn = select_lines(every, lambda setting: str(setting.algorithm))
    first = drawn[0]
    ranges = [[setting.mean("ms_per_iteration"), *setting.iteration_range] for setting in drawn]
    seeds = [counted(len(setting.seeds), "seed") for setting in drawn]
    rows, series = rows_of(drawn, names(drawn), ranges, seeds)
    stars = [
        (row, pair)
        for pair in pairs
        for row, setting in zip(rows, drawn, strict=True)
        if pair.setting is setting
    ]
    if stars:
        series.append(stars_of([pair for _, pair in stars], y=[row for row, _ in stars]))
    xs = [float(x) for one in series for x in one.x]
    axis = axis_over(f"{CLOCK[first.clock]} per iteration in ms", xs)
    bars = axis.scale == "linear"
    where = (first.clock, first.model, first.data, timed_models([first]), first.cluster)
    return plot_rows(
        file_name("time per iteration", *filter(None, where)),
        f"time per iteration on {counted(first.nodes, 'node')} · {kinds(drawn)}{on_cluster(drawn)}",
        f"{CLOCK[first.clock].capitalize()}. "
        + (
            f"{'Bars' if bars else 'Points'}: mean over the seeds; lines: {spread_of(drawn)}."
            if several_seeds(drawn)
            else "One seed each."
        )
        + (" Stars: published." if stars else ""),
        axis,
        series,
        rows,
        [f"{three_digits(mean)} ms" for mean, *_ in ranges],
        [name for name, setting in zip(names(every), every, strict=True) if setting not in drawn],
        bars,
    )


def several_seeds(settings: Sequence[RunGroup]) -> bool:
    """Return whether a setting has several seeds, or several rates of its links."""
    return any(len(setting.seeds) > 1 or setting.ranged for setting in settings)


def spread_of(
    settings: Sequence[RunGroup], seeds: str = "from the lowest seed to the highest"
) -> str:
    """Describe the spread over ``seeds`` and, for a range of link rates, over the rates."""
    if any(setting.ranged for setting in settings):
        return "from the highest rate of the links to the lowest, and over the seeds"
    return seeds


def beside_published(pairs: Sequence[Pair]) -> Iterator[Plot]:
    """Yield plots for each published table that has a figure comparable with one of our runs."""
    comparable = [pair for pair in pairs if pair.error is not None]
    for (metric, table), members in group_by(
        comparable, lambda pair: (pair.metric, table_of(pair.row))
    ).items():
        for part in range(0, len(members), MAX_LINES):
            yield published_plot(metric, table, members[part : part + MAX_LINES], part // MAX_LINES)


def table_of(row: str) -> str:
    """Return the prefix of a row's name that all rows of its table share."""
    return "_".join(row.split("_")[: 2 if row.startswith("slowmo") else 1])


def published_plot(metric: str, table: str, pairs: Sequence[Pair], part: int) -> Plot:
    rows = [wrap_label(pair.row.removeprefix(f"{table}_")) for pair in pairs]
    series = [replace(stars_of(pairs, y=rows), texts=[pair.published.origin for pair in pairs])]
    keys = []
    for ours_is, members in group_by(
        zip(rows, pairs, strict=True), lambda item: item[1].ours_is
    ).items():
        shape = MARKS.get(ours_is, "circle")
        keys.append(f"{shape}: {ours_is}")
        series.append(
            Series(
                f"ours, {ours_is}",
                Style(OURS, shape, FILLS[members[0][1].kind]),
                [pair.ours for _, pair in members],
                [row for row, _ in members],
                [pair.low for _, pair in members],
                [pair.high for _, pair in members],
                [f"error {pair.error:+.1f} %" for _, pair in members],
            )
        )
    what = COMPARABLE[metric]
    return plot_rows(
        file_name("published", metric, table, *([str(part + 1)] if part else [])),
        f"{what}, published beside ours · rows {table}_…",
        f"Star: published; {'; '.join(keys)}. Bars: from our lowest seed to our highest. At the "
        "right: ours, and the error.",
        Axis(f"{what} {UNITS[metric]}".strip(), from_zero=True),
        series,
        rows,
        [f"{three_digits(pair.ours)}, {pair.error:+.1f} %" for pair in pairs],
    )


def rows_of(
    settings: Sequence[RunGroup],
    series_names: Sequence[str],
    ranges: Sequence[Sequence[float]],
    texts: Sequence[str],
) -> tuple[list[str], list[Series]]:
    """Return a row name and a series for each setting.

    ranges: mean, lowest and highest value of each setting; no line is drawn if they are equal
    texts: details of each setting, shown on hover
    """
    look = StyleMap(settings)
    rows = [wrap_label(name) for name in names(settings)]
    series = []
    for name, setting, row, (mean, *ends), text in zip(
        series_names, settings, rows, ranges, texts, strict=True
    ):
        low, high = ([end] for end in ends) if ends[0] < ends[1] else (None, None)
        series.append(Series(name, look.of(setting, line=False), [mean], [row], low, high, [text]))
    return rows, series


def plot_rows(
    name: str,
    title: str,
    note: str,
    axis: Axis,
    series: Sequence[Series],
    rows: Sequence[str],
    values: Sequence[str],
    rest: Sequence[str] = (),
    bars: bool = False,
) -> Plot:
    """Return a plot that shows each of ``values`` as text at the end of its bar or row."""
    ends = {
        row: max(
            float(end)
            for one in series
            for y, *reach in zip(one.y, one.x, one.high or one.x, strict=True)
            for end in reach
            if y == row
        )
        for row in rows
        if bars
    }
    labels = [
        Label(value, None, ends.get(row), row) for row, value in zip(rows, values, strict=True)
    ]
    axis = replace(axis, span=(0.0, max(ends.values()))) if bars else axis
    return Plot(name, title, note, axis, Axis("", "category"), series, "x", bars, labels, rest)
