"""Tables of a report on a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid
from rich.text import Text

from sgp_runner.recording.console import show
from sgp_runner.report.rank.ranked_table import RANK, ranked_tables
from sgp_runner.report.rank.ranking import rankings
from sgp_runner.report.rank.tables import Cell, ReportTable, of_pairs
from sgp_runner.report.read.comparison import Pair
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.report.render.terminal_plot import terminal_plot
from sgp_runner.utils.messages import logger


def show_rankings(settings: Sequence[RunGroup], target: float | None = None) -> None:
    """Print the ranked tables of the settings, each with its plot."""
    ranked = rankings(settings, target)
    for ranking, table in zip(ranked, ranked_tables(ranked), strict=True):
        show(grid(table))
        if picture := terminal_plot(ranking):
            logger.info(f"\n{picture}")


def grid(table: ReportTable) -> Grid:
    """Draw a table of a report; the notes of cells stand below them."""
    out = Grid(
        title=Text.assemble((table.title, "bold"), "\n", (table.note, "dim")),
        box=SIMPLE_HEAD,
        title_justify="left",
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in table.head:
        if name in table.words:
            out.add_column(name, overflow="fold")
        else:
            out.add_column(name.replace(" per ", "\nper "), justify="right", no_wrap=True)
    for number, row in enumerate(table.cells):
        best = number == 0 and table.head[0] == RANK
        out.add_row(*map(shown, row), style="bold" if best else None)
    return out


def published_grid(pairs: Sequence[Pair]) -> Grid:
    """Draw the published figures beside ours, without sources, seeds and commits."""
    table = of_pairs(pairs, lambda folder, file: "")
    cells = [[replace(cell, note="") for cell in row[:6]] for row in table.cells]
    return grid(replace(table, head=table.head[:6], cells=cells))


def shown(cell: Cell) -> Text:
    words = " ".join(link.text for link in cell.links)
    return Text.assemble(words, (f"\n{cell.note}" if cell.note else "", "dim"))
