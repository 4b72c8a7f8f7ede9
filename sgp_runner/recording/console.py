"""Console output: progress while a run trains, its final table, and published figures beside it.

On a terminal or in a notebook a bar that redraws itself; into a file or a pipe plain lines, about
one per epoch.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.box import ROUNDED, SIMPLE_HEAD, Box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sgp_runner.recording.notebook import NotebookLive, in_notebook
from sgp_runner.utils.files import short_path
from sgp_runner.utils.units import counted, duration, milliseconds, num_bytes, number, percent

LOSSES = 64  # training losses that are averaged for display
QUIET_SECONDS = 60.0  # longest time between two lines while records arrive
CLOCKS: dict[str | None, str] = {"simulated": "simulated time", "wall": "wall-clock time"}


class ConsoleListener:
    """Shows the progress of a run on stdout.

    Use it as a context manager, or call ``start`` and ``stop``. With workers at different steps,
    the bar shows their mean.

    title: name of the run
    total_steps: number of steps of each worker
    clock: ``"simulated"`` or ``"wall"``
    """

    def __init__(self, title: str, total_steps: int, clock: str) -> None:
        self._title = title
        self._total = max(total_steps, 1)
        self._clock = clock
        self._steps: dict[object, float] = {}
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._epoch = 0.0
        self._time_s = 0.0
        self._quality: str | None = None
        self._done = False
        self._started = time.monotonic()
        self._said_epoch = 0.0
        self._said_at = self._started
        self._live: Live | NotebookLive | None = None

    def start(self) -> None:
        """Show the title, and on a terminal or in a notebook the bar."""
        self._started = self._said_at = time.monotonic()
        console = stdout_console()
        if in_notebook():
            self._live = NotebookLive(self._render)
        elif console.is_terminal:
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)
        if self._live is not None:
            self._live.start(refresh=True)
        else:
            print(self._title, flush=True)

    def stop(self) -> None:
        """Leave the bar in place and release the terminal. A second call does nothing."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def write(self, record: Mapping[str, object]) -> None:
        kind = record["kind"]
        self._time_s = max(self._time_s, number(record.get("time_s")) or 0.0)
        self._epoch = max(self._epoch, number(record.get("epoch")) or 0.0)
        if kind == "train":
            self._steps[record.get("rank")] = number(record.get("step")) or 0.0
            if (loss := number(record.get("loss"))) is not None:
                self._losses.append(loss)
        elif kind == "average":
            self._quality = _quality_of(record)
        elif kind in ("lost", "rejoined"):
            self._steps.clear()
            self._total = round(number(record.get("steps")) or self._total)
            (print if self._live is None else self._live.console.print)(f"  {_change(record)}")
        if self._live is None and self._line_is_due(kind):
            print(f"  {self._progress()}  {self._numbers('  ')}", flush=True)
            self._said_at = time.monotonic()

    def finish(self, summary: Mapping[str, object] | None) -> None:
        self._done = summary is not None
        self.stop()

    def __enter__(self) -> ConsoleListener:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _line_is_due(self, kind: object) -> bool:
        """Return whether to print: at an evaluation, two epochs later, or after a minute."""
        if kind == "average":
            self._said_epoch = self._epoch
            return True
        if self._epoch >= self._said_epoch + 2:
            self._said_epoch = math.floor(self._epoch) - 1
            return True
        return time.monotonic() - self._said_at > QUIET_SECONDS

    def _step(self) -> int:
        if self._done:
            return self._total
        mean = sum(self._steps.values()) / len(self._steps) if self._steps else 0.0
        return min(round(mean), self._total)

    def _progress(self) -> str:
        digits = len(str(self._total))
        return f"step {self._step():{digits}d}/{self._total}  epoch {self._epoch:4.1f}"

    def _numbers(self, between: str) -> str:
        """Format loss, accuracy and time, leaving out what is unknown."""
        parts = []
        if self._losses:
            parts.append(f"loss {sum(self._losses) / len(self._losses):.4f}")
        if self._quality is not None:
            parts.append(self._quality)
        if self._clock == "simulated":
            parts.append(f"simulated {duration(self._time_s)}")
        parts.append(f"real {duration(math.floor(time.monotonic() - self._started))}")
        return between.join(parts)

    def _render(self) -> RenderableType:

        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_row(ProgressBar(total=self._total, completed=self._step()), Text(self._progress()))
        return Group(
            Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"),
            line,
            Text(self._numbers(" · "), no_wrap=True, overflow="ellipsis"),
        )


def stdout_console() -> Console:
    """Return a console on stdout: coloured on a terminal, plain text anywhere else."""

    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
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
    results = (
        [f"results in {short_path(Path(str(summary['run_dir'])))}"] if "run_dir" in summary else []
    )
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


def outcome(row: Mapping[str, object]) -> str:
    """Describe what a run came to in a few words.

    row: a summary, or one with ``failed``, a sentence, for a run without results.
    """
    if row.get("failed"):
        return f"{'diverged' if row.get('diverged') else 'failed'}: {row['failed']}"
    clock = " simulated" if _text(row, "clock") == "simulated" else ""
    if (step := number(row.get("ms_per_iteration"))) is not None:
        return f"{milliseconds(step)} per iteration{clock}"
    quality = _shown(row, "average") or "?"
    if row.get("metric") != "accuracy":
        quality = f"{_metric_name(row)} {quality}"
    return f"{quality} in {duration(number(row.get('time_s')) or 0.0)}{clock}"


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


def _quality_of(record: Mapping[str, object]) -> str | None:
    accuracy, loss = number(record.get("accuracy")), number(record.get("loss"))
    if accuracy is not None:
        return f"accuracy {percent(accuracy)}"
    return None if loss is None else f"averaged loss {loss:.4g}"


def _change(record: Mapping[str, object]) -> str:
    ranks = record["ranks"]
    assert isinstance(ranks, list)
    who = f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    epoch = f"epoch {number(record['epoch']):.2f}"
    nodes = number(record["nodes"]) or 0
    continues = f"{counted(nodes, 'node')} continue{'s' if nodes == 1 else ''}"
    return f"{who} {record['kind']}: {continues} from {epoch}."


def _amount(summary: Mapping[str, object]) -> str | None:
    amounts = [(number(summary.get(f"{noun}s")), noun) for noun in ("epoch", "step")]
    return ", ".join(counted(value, noun) for value, noun in amounts if value is not None) or None


def _text(row: Mapping[str, object], key: str) -> str | None:
    value = row.get(key)
    return None if value is None else str(value)
