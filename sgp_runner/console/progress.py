"""Progress display on stdout for a training run or a sweep.

A terminal shows a bar that redraws itself. A file, a pipe or a notebook receives plain lines: at
each evaluation, and after half a minute without output. A separate thread updates the display, so
that it also works during long gradients and evaluations.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import Event, Thread

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from sgp_runner.console.estimate import Work
from sgp_runner.console.summary import stdout_console, throughput_text
from sgp_runner.recording.evaluation_meter import EvaluationMeter
from sgp_runner.utils.messages import is_quiet, logger
from sgp_runner.utils.units import counted, duration, number, percent

LOSSES = 64  # training losses that are averaged for display
QUIET_SECONDS = 30.0  # longest time between two lines
LOOK_SECONDS = 0.25  # between two looks at the work
SPEED_SECONDS = 3600.0  # in which the speed is measured
LARGE_SHARE = 0.2  # of evaluation in the real time, which is announced
SHORT_SECONDS = 30.0  # of a run, in which the share of evaluation is not announced


class Bar(Progress):
    """A progress bar with its description in the lines below."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield from (Text(task.description) for task in self.tasks)


class Display:
    """A display of progress and remaining time on stdout; empty if messages are hidden.

    look: returns the progress, a description, and the seconds left; None to extrapolate them from
        the speed so far
    """

    def __init__(self, look: Callable[[], tuple[Work, str, float | None]]) -> None:
        console = stdout_console()
        self._look, self._ended, self._said_at = look, Event(), time.monotonic()
        self._bar = Bar(
            BarColumn(None),
            TextColumn("{task.fields[amount]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
            auto_refresh=False,
            expand=True,
            speed_estimate_period=SPEED_SECONDS,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", completed=look()[0].done, amount="", left="")
        self._thread = Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        if is_quiet():
            return
        self._update()
        self._bar.start()
        if not self._bar.disable:
            self._bar.console.show_cursor(True)  # a killed process could not restore it
        self._thread.start()

    def stop(self) -> None:
        """Stop drawing and leave the last bar on the terminal. A second call does nothing."""
        if self._thread.is_alive():
            self._ended.set()
            self._thread.join()
            self._update()
            self._bar.stop()

    def say(self, line: str) -> None:
        """Print a line."""
        self._said_at = time.monotonic()
        logger.info(line)

    def say_progress(self) -> None:
        """Print the progress, unless a bar shows it."""
        if self._bar.disable:
            self.say(f"  {self._update()}")

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self._update()
            if time.monotonic() - self._said_at > QUIET_SECONDS:
                self.say_progress()

    def _update(self) -> str:
        """Redraw the bar and return the progress as a line."""
        work, what, seconds = self._look()
        self._bar.update(self._task, total=work.total, completed=work.done, description=what)
        left = time_left(self._bar.tasks[0].time_remaining if seconds is None else seconds)
        total = f"{work.total:,}"
        amount = f"{work.unit} {work.done:{len(total)},d}/{total}"
        self._bar.update(self._task, amount=amount, left=left, refresh=True)
        return " · ".join(filter(None, (amount, left, what)))


def time_left(seconds: float | None) -> str:
    return f"about {duration(math.ceil(seconds))} left" if seconds else ""


class ConsoleListener:
    """Listener that shows the progress of a run on stdout.

    title: name of the run
    clock: ``"simulated"`` or ``"wall"``
    epochs: number of epochs of the whole run
    work: returns the progress of the run
    meter: measures the evaluations
    """

    def __init__(
        self,
        title: str,
        clock: str,
        epochs: float,
        work: Callable[[], Work],
        meter: EvaluationMeter | None = None,
    ) -> None:
        self._title, self._clock, self._epochs, self._work = title, clock, epochs, work
        self._meter, self._announced = meter or EvaluationMeter(), False
        self._losses: deque[float] = deque(maxlen=LOSSES)
        self._time_s, self._started, self._done = 0.0, time.monotonic(), False
        self._quality: str | None = None
        self._throughput: str | None = None  # of rank 0
        self._display = Display(self._look)

    def start(self) -> None:
        logger.info(self._title)
        self._started = time.monotonic()
        self._display.start()

    def write(self, record: Mapping[str, object]) -> None:
        kind, first = record["kind"], record.get("rank") == 0
        self._time_s = max(self._time_s, number(record.get("time_s")) or 0.0)
        if kind == "train":
            if (loss := number(record.get("loss"))) is not None:
                self._losses.append(loss)
            if first and (rates := throughput_text(record)):
                self._throughput = f"{rates} (rank 0)"
        elif kind == "average" or (kind == "eval" and self._clock == "wall" and first):
            quality = _quality_of(record)
            self._quality = f"{quality} (rank 0)" if quality and kind == "eval" else quality
            self._display.say_progress()
            self._announce(time.monotonic() - self._started)
        elif kind in ("lost", "rejoined"):
            self._display.say(f"  {_change(record)}")

    def finish(self, summary: Mapping[str, object] | None) -> None:
        self._done = summary is not None
        self._display.stop()

    def _announce(self, seconds: float) -> None:
        """Print a hint, once, if evaluation takes a large share of a long run's ``seconds``."""
        share = self._meter.seconds / seconds
        if not self._announced and seconds > SHORT_SECONDS and share >= LARGE_SHARE:
            self._announced = True
            self._display.say(
                f"  Evaluation takes about {100 * share:.0f} % of the real time: a larger "
                "eval_every, or eval_workers=false, is faster."
            )

    def _look(self) -> tuple[Work, str, None]:
        """Return the progress and a description with the known epoch, loss, accuracy and times."""
        work = self._work()
        work = replace(work, done=work.total if self._done else min(work.done, work.total))
        parts = [
            f"epoch {self._epochs * work.share:.1f}",
            f"loss {sum(self._losses) / len(self._losses):.4f}" if self._losses else None,
            self._quality,
            f"simulated {duration(self._time_s)}" if self._clock == "simulated" else None,
            f"real {duration(math.floor(time.monotonic() - self._started))}",
            self._throughput,
        ]
        return work, " · ".join(filter(None, parts)), None


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
