"""Generated parts of ``docs/validation.md``: cells with their errors, and sources."""

from __future__ import annotations

from collections.abc import Sequence

from pages.settings import table
from validation import sources
from validation.cells import Cell, cells, mean_and_worst, scored

# Heads of the first columns of tables. Further words of a cell are the head of its own column.
HEADS = {
    "delay": ("ranks", "rate", "size", "delay"),
    "diloco": ("rate",),
    "script": ("delay", "rate"),
    "sends": ("delay", "rate"),
    "tcp": ("rate",),
}


def times(names: str) -> str:
    """Return the cells of some tables, with a summary sentence; or the table of sources."""
    if names == "sources":
        head = ("", "`cluster=`", "fitted constants", "times", "mean", "worst")
        return table(sources.lines_of_table(), head)
    listed = [cell for cell in cells() if cell.table in names.split()]
    head = HEADS.get(listed[0].table, ("",))
    if len(head) < len(listed[0].labels):
        text = pivot(listed, head)
    else:
        body = [(*cell.labels, real(cell), f"{cell.simulated:.4g}", error(cell)) for cell in listed]
        text = table(body, (*head, "real", "simulated", "error"))
    return f"{text}\n\n{summary(listed)}"


def pivot(listed: Sequence[Cell], head: Sequence[str]) -> str:
    """Return a table of real times and errors, with a column for each value of the last labels."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for cell in listed:
        column = ", ".join(cell.labels[len(head) :])
        row = rows.setdefault(cell.labels[: len(head)], {})
        row[column] = f"{real(cell)} ({percent(cell.error)})"
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    body = [(*labels, *(row.get(column, "") for column in columns)) for labels, row in rows.items()]
    return table(body, (*head, *columns))


def real(cell: Cell) -> str:
    return f"{cell.seconds:.4g}"


def percent(error: float) -> str:
    return f"{round(error, 1) + 0.0:+.1f} %"  # no minus zero


def error(cell: Cell) -> str:
    left_out = f"; left out: {percent(cell.error_left_out)}" if cell.left_out else ""
    return percent(cell.error) + (f" (fitted{left_out})" if cell.fitted else "")


def summary(listed: Sequence[Cell]) -> str:
    errors = scored(listed) or [cell.error for cell in listed]
    mean, worst = mean_and_worst(errors)
    kind = "predicted" if scored(listed) else "fitted"
    return f"Errors of {len(errors)} {kind} times: **mean {mean:.1f} %, worst {worst:.1f} %**."
