"""Progress on stdout while a run trains.

On a terminal a bar that redraws itself; into a file or a pipe plain lines, about one per epoch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sgp_runner.recording.console import stdout_console
from sgp_runner.utils.units import counted, duration, number, percent

LOSSES = 64  # training losses that are averaged for display
QUIET_SECONDS = 60.0  # longest time between two lines while records arrive


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
        self._live: Live | None = None

    def start(self) -> None:
        """Show the title, and on a terminal the bar."""
        self._started = self._said_at = time.monotonic()
        console = stdout_console()
        if console.is_terminal:
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)
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
