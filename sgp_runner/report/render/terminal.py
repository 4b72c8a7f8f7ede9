"""Tables and plots of a report on a terminal of 80 columns or more.

A plot shows quality against time; each curve is drawn with the rank of its setting. The time axis
is logarithmic, so that equal speed-ups are equal distances. If the target is an accuracy near 1,
the quality axis is logarithmic in the error: 98 % and 99 % are further apart than 58 % and 59 %.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid
from rich.text import Text

from sgp_runner.console.summary import show
from sgp_runner.report.plots.quality import ERROR_AXIS_ACCURACY
from sgp_runner.report.rank.ranked_table import RANK, ranked_tables
from sgp_runner.report.rank.ranking import Ranking, Row, rankings
from sgp_runner.report.rank.tables import Cell, ReportTable, of_pairs
from sgp_runner.report.read.naming import title
from sgp_runner.report.read.published import Pair
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.utils.messages import logger
from sgp_runner.utils.units import HOUR, MINUTE, counted, duration

WIDTH, HEIGHT = 70, 16  # characters between the axes
MARGIN = 8  # characters of a label
MARKS = "123456789abcdefghijklmnopqrstuvwxyz"
DAY = 24 * HOUR
TIMES = [
    digits * unit
    for unit, several in (
        (0.001, (1, 10, 100)),
        (1.0, (1, 2, 5, 10, 20)),
        (MINUTE, (1, 2, 5, 10, 20)),
        (HOUR, (1, 3, 8)),
        (DAY, (1, 3, 10, 30, 100)),
    )
    for digits in several
]
ACCURACIES = (0.0, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
MAX_ACCURACY = 0.9995  # an error of 0 has no logarithm
LABELS = 5  # on an axis of qualities without fixed ones
Scale = tuple[Callable[[float], float], Sequence[float], Callable[[float], str]]


def show_rankings(settings: Sequence[RunGroup], target: float | None = None) -> None:
    """Print the ranked tables of the settings, each with its plot."""
    ranked = rankings(settings, target)
    for ranking, table in zip(ranked, ranked_tables(ranked), strict=True):
        show(grid(table))
        if picture := terminal_plot(ranking):
            logger.info(f"\n{picture}")


def grid(table: ReportTable) -> Grid:
    """Draw a table of a report; the note of a cell is below the cell's text."""
    out = Grid(
        title=Text.assemble((table.title, "bold"), "\n", (table.note, "dim")),
        box=SIMPLE_HEAD,
        title_justify="left",
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    rows = [[*map(cell_text, row)] for row in table.cells]
    for place, name in enumerate(table.head):
        if name in table.text_columns:
            out.add_column(name, overflow="fold")
        else:  # only the title may be broken
            widest = max((line.cell_len for row in rows for line in row[place].split()), default=1)
            out.add_column(name.replace(" per ", "\nper "), justify="right", min_width=widest)
    for number, row in enumerate(rows):
        best = number == 0 and table.head[0] == RANK
        out.add_row(*row, style="bold" if best else None)
    return out


def published_grid(pairs: Sequence[Pair]) -> Grid:
    """Draw a table of published figures and our results, without sources, seeds and commits."""
    table = of_pairs(pairs, lambda folder, file: "")
    cells = [row[:6] for row in table.cells]
    return grid(without_notes(replace(table, head=table.head[:6], cells=cells)))


def without_notes(table: ReportTable) -> ReportTable:
    return replace(table, cells=[[replace(cell, note="") for cell in row] for row in table.cells])


def cell_text(cell: Cell) -> Text:
    text = " ".join(link.text for link in cell.links)
    return Text.assemble(text, (f"\n{cell.note}" if cell.note else "", "dim"))


def terminal_plot(ranking: Ranking) -> str:
    """Draw the best settings of a ranking, up to one for each of `MARKS`; empty without curves."""
    several = len({row.setting.nodes for row in ranking.rows}) > 1
    rows = [
        (mark, row_label(row, several), curve)
        for mark, row in zip(MARKS, ranking.rows, strict=False)
        # Time 0 has no logarithm.
        if len(curve := row.setting.curve[row.setting.curve["time_s"] > 0]) > 1
    ]
    if not rows or ranking.target is None:
        return ""
    times = np.concatenate([curve["time_s"].to_numpy() for _, _, curve in rows])
    qualities = np.concatenate([curve["quality"].to_numpy() for _, _, curve in rows])
    ends = float(qualities.min()), float(qualities.max())
    height, marked, label = scale_of(ranking.target.metric, ranking.target.value, *ends)
    first, last = math.log(times.min()), math.log(times.max())
    low, high = sorted(map(height, ends))

    def column(seconds: float) -> int:
        return round((math.log(seconds) - first) / (last - first or 1.0) * (WIDTH - 1))

    def line(quality: float) -> int:
        return round((high - height(quality)) / (high - low or 1.0) * (HEIGHT - 1))

    canvas = [[" "] * WIDTH for _ in range(HEIGHT)]
    if 0 <= line(ranking.target.value) < HEIGHT:
        canvas[line(ranking.target.value)] = ["·"] * WIDTH
    for mark, _, curve in reversed(rows):  # the best on top
        columns = [column(seconds) for seconds in curve["time_s"]]
        lines = [line(quality) for quality in curve["quality"]]
        path = range(columns[0], columns[-1] + 1)
        drawn = [round(y) for y in np.interp(path, columns, lines)]
        for x, before, y in zip(path, [drawn[0], *drawn], drawn, strict=False):
            # A steep piece is drawn down to the line before it.
            for filled in range(y, before if before > y + 1 else y + 1):
                canvas[filled][x] = mark
    labels = {line(quality): label(quality) for quality in marked}
    picture = [
        f"{labels.get(number, ''):>{MARGIN}} ┤{''.join(cells)}".rstrip()
        for number, cells in enumerate(canvas)
    ]
    ticks = {
        column(tick): re.sub("( 00 min)?( 00 s)?$", "", duration(tick))  # 1 min, not 1 min 00 s
        for tick in TIMES
        if first <= math.log(tick) <= last
    }
    ticks = ticks or {0: duration(times.min()), WIDTH - 1: duration(times.max())}
    names = [f"{mark} {name}" for mark, name, _ in rows]
    heading = textwrap.wrap(title(ranking.settings), MARGIN + 2 + WIDTH)
    return "\n".join([*heading, *picture, *time_axis(ticks), *wrapped(names)])


def row_label(row: Row, with_nodes: bool) -> str:
    nodes = [f"· {counted(row.setting.nodes, 'node')}"] if with_nodes else []
    return " ".join(filter(None, [row.setting.algorithm, row.note, *nodes]))


def scale_of(metric: str, target: float, low: float, high: float) -> Scale:
    """Choose the axis for qualities from ``low`` to ``high``.

    Returns a function from a quality to its height, in any unit, the qualities to label, and a
    function from a quality to the text of its label.
    """
    if metric == "accuracy" and target >= ERROR_AXIS_ACCURACY:
        ticks = [tick for tick in ACCURACIES if low <= tick <= high]
        return lambda quality: -math.log(1 - min(quality, MAX_ACCURACY)), ticks, percent_of
    ticks = [low + (high - low) * share / (LABELS - 1) for share in range(LABELS)]
    if metric == "loss" and low > 0:
        ticks = [low * (high / low) ** (share / (LABELS - 1)) for share in range(LABELS)]
        return lambda quality: -math.log(quality), ticks, "{:.3g}".format
    sign = -1.0 if metric == "loss" else 1.0
    label = percent_of if metric == "accuracy" else "{:.3g}".format
    return lambda quality: sign * quality, ticks, label


def percent_of(share: float) -> str:
    return f"{100 * share:.3g} %"


def time_axis(ticks: dict[int, str]) -> list[str]:
    """Draw the time axis, with the labels that do not overlap their predecessor."""
    axis, below = ["─"] * WIDTH, ""
    for column, label in sorted(ticks.items()):
        start = max(0, min(column - len(label) // 2, WIDTH - len(label)))
        if start > len(below) or not below:
            axis[column] = "┬"
            below = below.ljust(start) + label
    indent = " " * (MARGIN + 2)
    return [f"{indent[:-1]}└{''.join(axis)}", f"{indent}{below}"]


def wrapped(names: Sequence[str]) -> list[str]:
    """Return the names side by side, wrapped to the width of the plot."""
    whole = "   ".join(name.replace(" ", "\N{NO-BREAK SPACE}") for name in names)
    lines = textwrap.wrap(whole, MARGIN + WIDTH, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
