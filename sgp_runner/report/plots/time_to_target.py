"""Plots of the time to a target: which algorithm is fastest, and on which network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sgp_runner.report.plots.figure import Axis, Label, Plot, Series
from sgp_runner.report.plots.style import MAX_LINES, StyleMap, axis_over, select_lines
from sgp_runner.report.rank.ranking import Ranking, Row
from sgp_runner.report.read.naming import (
    BASELINE,
    CLOCK,
    file_name,
    group_by,
    names,
    on_cluster,
    three_digits,
    time_unit,
    wrap_label,
)
from sgp_runner.utils.units import counted, duration

UNIT_SYMBOLS = {"hours": "h", "minutes": "min", "seconds": "s"}


def to_target(rankings: Sequence[Ranking]) -> Iterator[Plot]:
    """Plot what a report is asked first: a task's networks in one plot, then each of them."""
    there = [each for each in rankings if each.target is not None and each.rows[0].times]
    for members in group_by(there, lambda each: (each.task, each.clock)).values():
        if len(members) > 1:
            yield networks(members)
    for each in there:
        yield time_to_target(each)


def networks(rankings: Sequence[Ranking]) -> Plot:
    """Plot the fastest setting on each network, and what its speed-up is over; fastest first."""
    ordered = sorted(rankings, key=lambda each: each.rows[0].time)
    drawn = ordered[:MAX_LINES]
    pairs = [ends_of(each) for each in drawn]
    unit, size = time_unit(pairs[0][0].time)
    look = StyleMap([row.setting for pair in pairs for row in pair])
    places = [wrap_label(network(each)) for each in drawn]
    series = []
    rows = [(place, row) for place, pair in zip(places, pairs, strict=True) for row in pair]
    for algorithm, found in group_by(rows, lambda each: each[1].setting.algorithm).items():
        series.append(
            Series(
                algorithm,
                look.of(found[0][1].setting, line=False),
                [row.time / size for _, row in found],
                [place for place, _ in found],
                [min(row.times) / size for _, row in found],
                [max(row.times) / size for _, row in found],
                [row.name for _, row in found],
            )
        )
    labels = [
        Label("\n".join(told(row, size, unit) for row in pair), None, None, place)
        for place, pair in zip(places, pairs, strict=True)
    ]
    first = drawn[0]
    assert first.target is not None
    clock = CLOCK[first.clock]
    return Plot(
        file_name("fastest", first.task, first.clock),
        f"fastest to {first.target.words} on each network · {first.task}",
        f"The target is {first.target.rule}. The fastest setting on each network, and the one that "
        "its speed-up is over; lines: from the fastest seed to the slowest.",
        axis_over(f"{clock} in {unit}", [row.time / size for pair in pairs for row in pair]),
        Axis("", "category"),
        series,
        "x",
        labels=labels,
        rest=[f"{network(each)}: {each.rows[0].name}" for each in ordered[MAX_LINES:]],
    )


def network(ranking: Ranking) -> str:
    """Name the machines of a ranking, or what it was measured on."""
    where = ranking.cluster or str(ranking.settings[0].network)
    return ", ".join(filter(None, (where, ranking.timed)))


def ends_of(ranking: Ranking) -> list[Row]:
    """Return the fastest row, and the one that its speed-up is over, if it is another one."""
    first = ranking.rows[0]
    others = [row for row in ranking.rows[1:] if row.times and row.name == first.over]
    same = [row for row in others if row.setting.nodes == first.setting.nodes]
    return [first, *same[:1]]


def told(row: Row, size: float, unit: str) -> str:
    return f"{row.setting.algorithm} {three_digits(row.time / size)} {UNIT_SYMBOLS[unit]}"


def time_to_target(ranking: Ranking) -> Plot:
    """Plot a ranking, the fastest first."""
    assert ranking.target is not None
    ranked = [row for row in ranking.rows if row.times]
    there = select_lines(ranked, lambda row: str(row.setting.algorithm))
    unit, size = time_unit(there[0].time)
    drawn = [row.setting for row in there]
    look = StyleMap(drawn)
    clock = f"{CLOCK[ranking.clock]} in {unit}"
    axis = axis_over(clock, [row.time / size for row in there])
    wide = axis.scale == "log"
    never = [row.name for row in ranking.rows if not row.times]
    note = f"The target is {ranking.target.rule}. {'Points' if wide else 'Bars'}: mean over the "
    note += "seeds that reach it; lines: from the fastest to the slowest."
    overs = {row.over for row in there if row.over}
    note += f" ×: speed-up over {overs.copy().pop()}." if len(overs) == 1 else ""
    more = f" and {len(never) - MAX_LINES} more" if len(never) > MAX_LINES else ""
    note += f" Not reached by {', '.join(never[:MAX_LINES])}{more}." if never else ""
    rows = [wrap_label(name) for name in names(drawn)]
    series = [
        Series(
            row.name,
            look.of(row.setting, line=False),
            [row.time / size],
            [place],
            [min(row.times) / size],
            [max(row.times) / size],
            [reached(row)],
        )
        for place, row in zip(rows, there, strict=True)
    ]
    labels = [
        Label(value_of(row, size, unit, len(overs) == 1), None, None, place)
        for place, row in zip(rows, there, strict=True)
    ]
    title = f"{CLOCK[ranking.clock]} to {ranking.target.words} · {where(ranking)}"
    return Plot(
        file_name("time to target", *ranking.words),
        title,
        note,
        axis,
        Axis("", "category"),
        series,
        "x",
        bars=not wide,
        labels=labels,
        rest=[f"{row.name}: {duration(row.time)}" for row in ranked if row not in there],
    )


def value_of(row: Row, size: float, unit: str, with_speed: bool) -> str:
    text = f"{three_digits(row.time / size)} {UNIT_SYMBOLS[unit]}"
    if with_speed and row.speed_up is not None and row.setting.algorithm != BASELINE:
        text += f", {three_digits(row.speed_up)}×"
    return f"{text}\n{reached(row)}" if row.missing else text


def reached(row: Row) -> str:
    return f"{len(row.times)} of {counted(len(row.setting.seeds), 'seed')}"


def where(ranking: Ranking) -> str:
    return f"{ranking.task}{on_cluster(ranking.settings)}"
