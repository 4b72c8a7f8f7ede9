"""Progress on stdout while a run trains.

A terminal shows a bar that redraws itself. A file or a pipe receives plain lines: at each
evaluation, at every other epoch without evaluations, and after half a minute without output. At
most once in half a minute, a second line has the throughput of a real run. A separate thread prints
the lines, so they also appear during long gradients and evaluations.
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Event, Lock, Thread

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sgp_runner.console.estimate import Estimate, Work
from sgp_runner.console.summary import stdout_console, throughput_text
from sgp_runner.recording.evaluation_meter import EvaluationMeter
from sgp_runner.utils.messages import is_quiet, logger
from sgp_runner.utils.units import counted, duration, number, percent

LOSSES = 64  # training losses that are averaged for display
QUIET_SECONDS = 30.0  # longest time between two lines
LOOK_SECONDS = 0.25  # between two looks at the work
MEASURED_SECONDS = 2.0  # of work, before the remaining time is estimated
WARM_UP_SECONDS = 10.0  # of work, in which memory is touched for the first time
LARGE_SHARE = 0.2  # of evaluation in the real time, which is announced
SHORT_SECONDS = 30.0  # shorter runs get no estimate
NOTEBOOK_STDOUT = "ipykernel.iostream"  # module of the stdout of a notebook's kernel
REDRAW_SECONDS = 0.5
NOTEBOOK_WIDTH = 100  # characters


class Pace:
    """The speed of a run, measured from the first unit of work, and again after the warm-up.

    seconds_each: seconds per unit; None until measured
    sure: whether ``seconds_each`` is the speed after the warm-up
    """

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None
        self.seconds_each: float | None = None
        self.warm = self.sure = False

    def look(self, now: float, work: Work) -> None:
        """Update the measured speed with the progress of ``work`` at the time ``now``."""
        if self.first is None:
            if work.done:
                self.first = now, work.done
            return
        since, done = self.first
        if work.done == done or now - since < MEASURED_SECONDS:
            return
        self.seconds_each = (now - since) / (work.done - done)
        self.sure = self.warm or self.seconds_each >= WARM_UP_SECONDS
        if not self.warm and now - since >= WARM_UP_SECONDS:
            self.warm, self.first = True, (now, work.done)

    def left(self, work: Work) -> float | None:
        """Return the estimated seconds left; None until the speed is measured."""
        if self.seconds_each is None:
            return None
        return max(0, work.total - work.done) * self.seconds_each


class ConsoleListener:
    """Shows the progress of a run on stdout.

    title: name of the run
    clock: ``"simulated"`` or ``"wall"``
    epochs: number of epochs of the whole run
    work: returns the progress of the run
    estimate: describes the costs of the whole run, once the speed is known
    meter: measures the evaluations, which the speed leaves out
    """

    def __init__(
        self,
        title: str,
        clock: str,
        epochs: float,
        work: Callable[[], Work],
        estimate: Estimate,
        meter: EvaluationMeter | None = None,
    ) -> None:
        self._meter, self._announced, self._partial = meter or EvaluationMeter(), False, False
        self._title, self._clock, self._epochs = title, clock, epochs
        self._work, self._estimate = work, estimate
        self._pace = Pace()
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._time_s = 0.0
        self._quality: str | None = None
        self._throughput: str | None = None  # of rank 0
        self._done = self._estimated = False
        self._started = self._said_at = self._throughput_said_at = time.monotonic()
        self._said_epoch = 0.0
        self._live: Live | NotebookLive | None = None
        self._printing, self._ended = Lock(), Event()
        self._thread = Thread(target=self._look, daemon=True)

    def start(self) -> None:
        """Show the title and, on a terminal, the bar. Show nothing if messages are hidden."""
        if is_quiet():
            return
        self._started = self._said_at = time.monotonic()
        console = stdout_console()
        if in_notebook():
            self._live = NotebookLive(self._render)
            self._live.start(refresh=True)
        elif console.is_terminal:
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)
            self._live.start(refresh=True)
            console.show_cursor(True)  # a killed process could not restore it
        else:
            logger.info(self._title)
        self._said_epoch = self._epoch
        self._thread.start()

    def stop(self) -> None:
        """Stop drawing and leave the last bar on the terminal. A second call does nothing."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def write(self, record: Mapping[str, object]) -> None:
        kind = record["kind"]
        self._time_s = max(self._time_s, number(record.get("time_s")) or 0.0)
        evaluated = kind == "average"
        if kind == "train" and record.get("rank") == 0:
            self._throughput = throughput_text(record) or self._throughput
        if kind == "train" and (loss := number(record.get("loss"))) is not None:
            self._losses.append(loss)
        elif kind == "average":
            self._quality = _quality_of(record)
        elif kind == "eval" and self._clock == "wall" and record.get("rank") == 0:
            quality = _quality_of(record)
            self._quality, evaluated = quality and f"{quality} (rank 0)", True
        elif kind in ("lost", "rejoined"):
            self._print(_change(record))
        if self._live is None and self._line_is_due(evaluated):
            self._say()

    def finish(self, summary: Mapping[str, object] | None) -> None:
        self._done = summary is not None
        self.stop()

    # On a thread of its own.

    def _look(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            now = time.monotonic()
            self._forecast(now)
            if self._live is None and now - self._said_at > QUIET_SECONDS:
                self._say()

    def _forecast(self, now: float) -> None:
        """Measure the speed and, once each, print the costs of the run and of its evaluations.

        Before an evaluation has ended, the costs are printed without it after `QUIET_SECONDS`.
        """
        work, meter, pace = self._work(), self._meter, self._pace
        pace.look(now - meter.seconds(now), work)
        left = self._left(work)
        if left is None or pace.seconds_each is None or not pace.sure:
            return
        seconds, untimed = now - self._started + left, meter.untimed
        if not self._estimated and (not untimed or now - self._started > QUIET_SECONDS):
            self._estimated = True
            if seconds > SHORT_SECONDS:
                self._partial = untimed > 0
                self._print(*self._estimate(seconds, pace.seconds_each, work, untimed))
        if self._estimated and not self._announced and meter.count:
            self._announce(seconds, meter.seconds(now))

    def _left(self, work: Work) -> float | None:
        """Return the estimated seconds left; None until the speed is known.

        Evaluations count as soon as one has ended.
        """
        left = self._pace.left(work)
        return None if left is None else left + self._meter.left

    def _announce(self, seconds: float, evaluating: float) -> None:
        """Print the length of the run, if it was printed without evaluations, and their share."""
        self._announced = True
        share = (evaluating + self._meter.left) / seconds
        if self._partial:
            self._print(f"With evaluations, this takes about {duration(round(seconds))}.")
        if seconds > SHORT_SECONDS and share >= LARGE_SHARE:
            self._print(
                f"Evaluation takes about {100 * share:.0f} % of the real time: a larger "
                "eval_every, or eval_workers=false, is faster."
            )

    def _print(self, *lines: str) -> None:
        with self._printing:
            for line in lines:
                logger.info(f"  {line}")

    def _line_is_due(self, evaluated: bool) -> bool:
        """Return whether to print a line: at an evaluation, or two epochs after the last line."""
        if evaluated:
            self._said_epoch = self._epoch
            return True
        due = self._epoch >= self._said_epoch + 2
        if due:
            self._said_epoch = math.floor(self._epoch) - 1
        return due

    def _say(self) -> None:
        """Print a line of progress."""
        self._said_at = time.monotonic()
        self._print(f"{self._progress()}  {self._numbers('  ')}")
        if self._throughput and self._said_at - self._throughput_said_at > QUIET_SECONDS:
            self._throughput_said_at = self._said_at
            self._print(f"{self._throughput} (rank 0)")

    @property
    def _present(self) -> Work:
        work = self._work()
        return replace(work, done=work.total if self._done else min(work.done, work.total))

    @property
    def _epoch(self) -> float:
        return self._epochs * (1.0 if self._done else self._work().share)

    def _progress(self) -> str:
        work = self._present
        total = f"{work.total:,}"
        return f"{work.unit} {work.done:{len(total)},d}/{total}  epoch {self._epoch:4.1f}"

    def _numbers(self, between: str) -> str:
        """Format loss, accuracy and times, leaving out unknown ones."""
        parts = []
        if self._losses:
            parts.append(f"loss {sum(self._losses) / len(self._losses):.4f}")
        if self._quality is not None:
            parts.append(self._quality)
        if self._clock == "simulated":
            parts.append(f"simulated {duration(self._time_s)}")
        parts.append(f"real {duration(math.floor(time.monotonic() - self._started))}")
        left = self._left(self._present)
        if left:
            bound = "more than" if self._meter.untimed else "about"
            parts.append(f"{bound} {duration(math.ceil(left))} left")
        return between.join(parts)

    def _render(self) -> RenderableType:
        work = self._present
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_row(ProgressBar(total=work.total, completed=work.done), Text(self._progress()))
        return Group(
            Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"),
            line,
            Text(self._numbers(" · "), no_wrap=True, overflow="ellipsis"),
            *([Text(f"{self._throughput} (rank 0)")] if self._throughput else []),
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


def in_notebook() -> bool:
    """Return whether stdout is the output of a notebook cell."""
    return type(sys.stdout).__module__ == NOTEBOOK_STDOUT


class NotebookLive:
    """A display in a notebook that redraws itself, with the interface of rich's `Live`.

    `Live` would need ipywidgets there.
    """

    def __init__(self, get_renderable: Callable[[], RenderableType]) -> None:
        self._render = get_renderable
        self._ended = Event()
        self._thread = Thread(target=self._redraw, daemon=True)

    def start(self, refresh: bool = True) -> None:
        from IPython.display import display

        self._handle = display(self._text(), raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._handle.update(self._text(), raw=True)

    def _redraw(self) -> None:
        while not self._ended.wait(REDRAW_SECONDS):
            self._handle.update(self._text(), raw=True)

    def _text(self) -> dict[str, str]:
        out = io.StringIO()
        Console(file=out, width=NOTEBOOK_WIDTH, force_jupyter=False).print(self._render())
        return {"text/plain": out.getvalue()}
