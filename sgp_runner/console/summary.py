"""Results on stdout: the table of a run, and one-line summaries of runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from io import StringIO

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sgp_runner.recording.throughput import RATES
from sgp_runner.utils.launchers import under_launcher
from sgp_runner.utils.units import (
    counted,
    duration,
    milliseconds,
    num_bytes,
    number,
    percent,
    with_prefix,
)
from sgp_runner.utils.user_code import nearby

CLOCKS: dict[str | None, str] = {"simulated": "simulated time", "wall": "wall-clock time"}


def stdout_console() -> Console:
    """Return a console on stdout: coloured on a terminal, plain text elsewhere.

    Under a launcher the output is plain, because ranks may have a terminal even if the launcher
    writes to a file.
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


def plain_lines(table: Table) -> list[str]:
    """Return the lines of a table in 80 columns, without colours or markup."""
    console = Console(file=StringIO(), width=80, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def summary_table(summary: Mapping[str, object]) -> Table:
    """Return the table of one run: quality, time, bytes and the folder of the results."""

    def text(key: str, form: Callable[[float], str]) -> str | None:
        value = number(summary.get(key))
        return None if value is None else form(value)

    # A path on an unfolded line of its own below the frame can be copied.
    results = [f"results in {nearby(str(summary['run_dir']))}"] if "run_dir" in summary else []
    notes = "\n".join(note for note in (_text(summary, "label"), *results) if note)
    names = [_text(summary, key) for key in ("algorithm", "model", "data")]
    size = text("nodes", lambda nodes: counted(nodes, "node"))
    title = " · ".join(part for part in (*names, size, _text(summary, "network")) if part)
    table = Table(
        title=Text(title, style="bold"),
        caption=Text(notes, style="dim", no_wrap=True, overflow="ignore") if notes else None,
        box=ROUNDED,
        show_header=False,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    quality, clock = _metric_name(summary), _text(summary, "clock")
    model = "server model" if summary.get("server") else "averaged model"
    mean, low, high = (_quality(summary, f"worker_{name}") for name in ("mean", "min", "max"))
    study = summary.get("ms_per_iteration") is not None
    steps = (number(summary.get("steps")) or 1) if study else 1
    hours = time_range(summary, "hours", "{:.2f} h".format)
    iterations = text("iterations", "{:,.0f} iterations".format)
    schedule = hours and iterations and f"{hours} for {iterations}"
    times = {
        f"{clock} time per iteration": time_range(summary, "ms_per_iteration", milliseconds),
        f"{clock} time of the schedule": schedule,
    }
    lost = summary.get("lost")
    epochs = text("epochs", lambda count: counted(count, "epoch"))
    amounts = filter(None, (epochs, text("steps", lambda count: counted(count, "step"))))
    rows = {
        f"{quality} per worker": mean and f"{mean} mean, {low} min, {high} max",
        f"{quality} of the {model}": _quality(summary, "average"),
        **({} if quality == "BLEU" else {f"BLEU of the {model}": text("bleu", "{:.1f}".format)}),
        f"bits per byte of the {model}": text("bits_per_byte", "{:.3f}".format),
        **(
            times if study else {CLOCKS.get(clock, "time"): time_range(summary, "time_s", duration)}
        ),
        "real time, all included": text("real_s", duration),
        f"sent per node{' and iteration' if study else ''}": text(
            "bytes_per_node", lambda sent: num_bytes(sent / steps)
        ),
        "throughput per node": throughput_text(summary),
        "time spent coding": coding_text(summary),
        "consensus distance": text("consensus_distance", "{:.3g}".format),
        "simulated" if study else "trained for": ", ".join(amounts) or None,
        "lost": ", ".join(f"rank {rank}" for rank in lost) if isinstance(lost, list) else None,
    }
    for name, value in rows.items():
        if value is not None:
            style = "bold green" if name == f"{quality} of the {model}" else ""
            table.add_row(Text(name), Text(value, style=style))
    return table


def outcome(row: Mapping[str, object]) -> str:
    """Return a short description of the result of a run.

    row: a summary; for a run without results, the key ``failed`` has a sentence
    """
    if row.get("failed"):
        return f"{'diverged' if row.get('diverged') else 'failed'}: {row['failed']}"
    clock = " simulated" if _text(row, "clock") == "simulated" else ""
    if (step := time_range(row, "ms_per_iteration", milliseconds)) is not None:
        return f"{step} per iteration{clock}"
    quality = _quality(row, "average") or "?"
    if row.get("metric") != "accuracy":
        quality = f"{_metric_name(row)} {quality}"
    return f"{quality} in {time_range(row, 'time_s', duration) or duration(0.0)}{clock}"


def time_range(row: Mapping[str, object], key: str, form: Callable[[float], str]) -> str | None:
    """Return a time; for a range of rates, preceded by the time at the highest rate."""
    times = (number(row.get(name)) for name in (f"{key}_fastest", key))
    return " to ".join(form(time) for time in times if time is not None) or None


def coding_text(summary: Mapping[str, object]) -> str | None:
    """Describe the share of simulated time that a node spends coding; None if it is zero."""
    coding, total = number(summary.get("coding_s")), number(summary.get("time_s"))
    return f"{percent(coding / total)} of the time" if coding and total else None


def throughput_text(rates: Mapping[str, object]) -> str | None:
    """Describe the rates in a record or a summary; None if there are none.

    Tokens are shown instead of samples if both are known.
    """
    samples, tokens, flops, mfu, waiting = (number(rates.get(name)) for name in RATES)
    if samples is None:
        return None
    count, unit = (samples, "samples") if tokens is None else (tokens, "tokens")
    parts = [f"{count:,.0f} {unit}/s" if count >= 99.5 else f"{count:.3g} {unit}/s"]
    if flops is not None:
        parts.append(with_prefix(flops, "FLOP/s"))
    if mfu is not None:
        parts.append(f"MFU {100 * mfu:.0f} %")
    if waiting is not None:
        parts.append(f"waiting {100 * waiting:.0f} %")
    return ", ".join(parts)


def _metric_name(summary: Mapping[str, object]) -> str:
    """Return the name of the metric; the accuracy of translations is called exact match."""
    if summary.get("metric") == "accuracy" and summary.get("bleu") is not None:
        return "exact match"
    name = str(summary.get("metric", "loss"))
    return name.upper() if name == "bleu" else name


def _quality(summary: Mapping[str, object], key: str) -> str | None:
    value = number(summary.get(key))
    if value is None:
        return None
    return percent(value) if summary.get("metric") == "accuracy" else f"{value:.4g}"


def _text(row: Mapping[str, object], key: str) -> str | None:
    value = row.get(key)
    return None if value is None else str(value)
