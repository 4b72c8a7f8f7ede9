"""Tables on stdout: the results of a run, comparisons of sweeps, and published figures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.box import ROUNDED, SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sgp_runner.utils.launchers import under_launcher
from sgp_runner.utils.units import counted, duration, milliseconds, num_bytes, number, percent

CLOCKS: dict[str | None, str] = {"simulated": "simulated time", "wall": "wall-clock time"}


def stdout_console() -> Console:
    """Return a console on stdout: coloured on a terminal, plain text anywhere else.

    A launcher may give its ranks a terminal although it writes into a file.
    """
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not under_launcher()
    return Console(
        file=sys.stdout,
        force_terminal=terminal,
        no_color=None if terminal else True,
        highlight=False,
    )


def show(table: Table) -> None:
    """Print a table on stdout, after an empty line; its caption may be wider than the console."""
    stdout_console().print("", table, sep="\n", crop=False)


def summary_table(summary: Mapping[str, object]) -> Table:
    """Make the table of one run: quality, time, bytes and the folder of its results."""

    # A path on an unfolded line of its own below the frame can be copied.
    results = [f"results in {_short_path(str(summary['run_dir']))}"] if "run_dir" in summary else []
    notes = "\n".join(text for text in (_text(summary, "label"), *results) if text)
    table = _table(
        _title(summary), Text(notes, style="dim", no_wrap=True, overflow="ignore"), ROUNDED
    )
    table.show_header = False
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")

    def row(name: str, value: str | None, style: str = "") -> None:
        if value is not None:
            table.add_row(Text(name), Text(value, style=style))

    def said(key: str, text: Callable[[float], str]) -> str | None:
        value = number(summary.get(key))
        return None if value is None else text(value)

    quality, clock = _metric_name(summary), _text(summary, "clock")
    model = "server model" if summary.get("server") else "averaged model"
    mean, low, high = (_shown(summary, key) for key in ("worker_mean", "worker_min", "worker_max"))
    row(f"{quality} per worker", mean and f"{mean} mean, {low} min, {high} max")
    row(f"{quality} of the {model}", _shown(summary, "average"), "bold green")
    row(
        f"BLEU of the {model}",
        said("bleu", "{:.1f}".format) if summary.get("metric") != "bleu" else None,
    )
    study, steps = summary.get("ms_per_iteration") is not None, number(summary.get("steps")) or 1
    if study:
        row(f"{clock} time per iteration", said("ms_per_iteration", milliseconds))
        hours = said("hours", "{:.2f} h".format)
        iterations = said("iterations", "{:,.0f} iterations".format)
        row(f"{clock} time of the schedule", hours and iterations and f"{hours} for {iterations}")
    else:
        row(CLOCKS.get(clock, "time"), said("time_s", duration))
    row("real time, all included", said("real_s", duration))
    each = steps if study else 1
    row(
        f"sent per node{' and iteration' if study else ''}",
        said("bytes_per_node", lambda sent: num_bytes(sent / each)),
    )
    row("consensus distance", said("consensus_distance", "{:.3g}".format))
    row("simulated" if study else "trained for", _amount(summary))
    lost = summary.get("lost")
    row(
        "lost",
        ", ".join(f"rank {rank}" for rank in lost) if isinstance(lost, list) else None,
    )
    return table


def comparison_table(rows: Sequence[Mapping[str, object]], title: str = "Comparison") -> Table:
    """Make the table of a sweep: one row per run, in the order given.

    A row is a summary with two more keys. ``job`` has the settings of this run of the sweep
    (``algo=sgp optim.lr=0.1``), of which those without a column are shown below the algorithm.
    ``failed``, a sentence, marks a run without results, which still needs ``algorithm`` and
    ``nodes``, as does an ``unfinished`` run.
    """

    done = [row for row in rows if not _state(row)]
    if done and all(number(row.get("ms_per_iteration")) is not None for row in done):
        return timing_table(rows, title)
    metrics = {_metric_name(row) for row in done}
    quality = metrics.pop() if len(metrics) == 1 else "quality"
    clocks = {CLOCKS.get(_text(row, "clock"), "time") for row in done}
    bleus = any(row.get("bleu") is not None and row.get("metric") != "bleu" for row in done)

    table = _comparison(rows, title)
    clock = "time" if len(clocks) != 1 else "\n".join(next(iter(clocks)).split())
    measures = [
        f"{quality}\naveraged",
        f"{quality}\nof workers",
        *(["BLEU"] if bleus else []),
        clock,
    ]
    for name in ("nodes", *measures, "sent\nper node"):
        table.add_column(name, justify="right", no_wrap=True)

    for row in rows:
        algorithm, nodes = _first_cells(row)
        if state := _state(row):
            table.add_row(algorithm, nodes, state)
            continue
        low, high, average = (_shown(row, key) for key in ("worker_min", "worker_max", "average"))
        time_s, sent, bleu = (number(row.get(key)) for key in ("time_s", "bytes_per_node", "bleu"))
        cells = [f"{low.removesuffix(' %')} – {high}" if low and high else ""]
        cells += [f"{bleu:.1f}" if bleu is not None else ""] if bleus else []
        cells += [
            ""
            if time_s is None
            else duration(time_s) + (f"\n{row.get('clock')}" if len(clocks) > 1 else "")
        ]
        cells += ["" if sent is None else num_bytes(sent)]
        table.add_row(algorithm, nodes, Text(average or "", style="bold green"), *map(Text, cells))
    return table


def timing_table(rows: Sequence[Mapping[str, object]], title: str) -> Table:
    """Make the table of a sweep of timing studies; rows as in `comparison_table`."""

    clock = next((_text(row, "clock") for row in rows if not _state(row)), "")
    table = _comparison(rows, title)
    for name in (
        "nodes",
        f"{clock} time\nper iteration",
        f"{clock} time\nof schedule",
        "sent per node\nand iteration",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        state = _state(row)
        cells = [state] if state else []
        if not state:
            step, hours, sent, steps = (
                number(row.get(key))
                for key in ("ms_per_iteration", "hours", "bytes_per_node", "steps")
            )
            cells = [
                Text(milliseconds(step or 0.0)),
                Text("" if hours is None else f"{hours:.2f} h"),
            ]
            cells += [Text("" if sent is None or not steps else num_bytes(sent / steps))]
        table.add_row(*_first_cells(row), *cells)
    return table


def published_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """Make the table of published figures beside ours.

    Keys of a row: ``row metric published ours error_percent ours_is``.
    """

    table = _table(
        "Published beside ours", Text("errors in percent of the published figure"), SIMPLE_HEAD
    )
    table.show_edge, table.pad_edge, table.collapse_padding = False, False, True
    table.add_column("row", overflow="fold")
    table.add_column("metric", overflow="fold")
    for name in ("published", "ours", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ours is")
    for row in rows:
        error = number(row["error_percent"])
        figures = [f"{number(row[key]):.4g}" for key in ("published", "ours")]
        figures += ["" if error is None else f"{error:+.1f} %"]
        table.add_row(
            str(row["row"]), str(row["metric"]), *figures, Text(str(row["ours_is"]), "dim")
        )
    return table


def _state(row: Mapping[str, object]) -> Text | None:
    """Return the cell of a run without results; None for a run that has some."""

    if row.get("failed"):
        return Text(_failure(row), style="bold red")
    return Text("unfinished", style="yellow") if row.get("unfinished") else None


def _comparison(rows: Sequence[Mapping[str, object]], title: str) -> Table:
    """Make a table with its first column, and the failures below it."""

    failures = [
        f"{_job(row)} {_failure(row)}: {row['failed']}" for row in rows if row.get("failed")
    ]
    table = _table(title, Text("".join(f"\n{text}" for text in failures), style="red"), SIMPLE_HEAD)
    # Saves width for terminals of 80 columns.
    table.show_edge, table.pad_edge, table.collapse_padding = False, False, True
    table.add_column("algorithm", overflow="fold")
    return table


def _first_cells(row: Mapping[str, object]) -> tuple[Text, Text]:
    """Return the algorithm with the settings that have no column, and the number of nodes."""

    settings = ((f"\n{word}", "dim") for word in _settings(row))
    return Text.assemble(_text(row, "algorithm") or "?", *settings), Text(
        _text(row, "nodes") or "?"
    )


def _table(title: str, notes: Text, box: Box) -> Table:

    return Table(
        title=Text(title, style="bold"),
        caption=notes if notes.plain else None,
        box=box,
        title_justify="left",
        caption_justify="left",
    )


def _title(summary: Mapping[str, object]) -> str:
    nodes = number(summary.get("nodes"))
    size = None if nodes is None else counted(nodes, "node")
    names = [_text(summary, key) for key in ("algorithm", "model", "data")]
    return " · ".join(part for part in (*names, size, _text(summary, "network")) if part)


def _metric_name(summary: Mapping[str, object]) -> str:
    """Name the metric; the accuracy of a translation, right in every word, is its exact match."""
    if summary.get("metric") == "accuracy" and summary.get("bleu") is not None:
        return "exact match"
    name = str(summary.get("metric", "loss"))
    return name.upper() if name == "bleu" else name


def _shown(summary: Mapping[str, object], key: str) -> str | None:
    value = number(summary.get(key))
    if value is None:
        return None
    return percent(value) if summary.get("metric") == "accuracy" else f"{value:.4g}"


def _amount(summary: Mapping[str, object]) -> str | None:
    amounts = [(number(summary.get(f"{noun}s")), noun) for noun in ("epoch", "step")]
    return ", ".join(counted(value, noun) for value, noun in amounts if value is not None) or None


def _failure(row: Mapping[str, object]) -> str:
    return "diverged" if row.get("diverged") else "failed"


def _job(row: Mapping[str, object]) -> str:
    return (
        _text(row, "job")
        or f"{_text(row, 'algorithm') or '?'} on {counted(number(row.get('nodes')) or 0, 'node')}"
    )


def _settings(row: Mapping[str, object]) -> list[str]:
    words = (_text(row, "job") or "").split()
    return [word for word in words if not word.startswith(("algo=", "nodes="))]


def _text(row: Mapping[str, object], key: str) -> str | None:
    value = row.get(key)
    return None if value is None else str(value)


def _short_path(path: str) -> str:
    """Return the path relative to the working directory, if it lies below."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
