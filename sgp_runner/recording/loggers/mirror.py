"""Mirror: a copy of a run's metrics at another destination, made on a separate thread.

A failing mirror never stops training: its error becomes one line on stderr, and the run continues
with ``metrics.jsonl`` alone. Training never waits for the destination; only the end of the run
waits for the last rows, for a limited time.
"""

from __future__ import annotations

import queue
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from sgp_runner.config.experiment import flat
from sgp_runner.recording.recorder import metrics_path, read_lines
from sgp_runner.utils.errors import first_line
from sgp_runner.utils.extras import require
from sgp_runner.utils.messages import logger
from sgp_runner.utils.reading import read_text
from sgp_runner.utils.units import number

FINISH_SECONDS = 60.0  # how long the last rows may delay the exit
HEAD_START = 2.0  # seconds that training may start undisturbed, or until the first record
MAX_WAITING_ROWS = 100_000  # waiting for the destination

abandoned = Event()  # set if a thread still waits for a destination and would delay the exit

SPREAD = {name: f"eval/{name}" for name in ("accuracy_mean", "accuracy_min", "accuracy_max")}
NOT_METRICS = ("kind", "rank", "time_s", "clock")
STEPS = ("train/step", "eval/step", "server/step")  # steps of training, in a row
PARTS = {"algorithm": "algo"} | {name: name for name in ("cluster", "model", "data", "network")}
Row = tuple[int, Mapping[str, float]]  # line of metrics.jsonl, from 0, and the numbers in it


class Destination(Protocol):
    """A destination of a mirror. Its methods may raise any exception.

    first: the first line of ``metrics.jsonl`` that is not in the copy
    """

    @property
    def first(self) -> int: ...

    def log(self, rows: Sequence[Row]) -> None:
        """Add rows, which arrive in order."""

    def finish(self, summary: Mapping[str, object] | None) -> str:
        """Close the copy and return a sentence with its location."""


class Mirror:
    """Copies the metrics of rank 0 and of the averaged model, until the first failure.

    title: name of the destination in messages
    start: opens the destination on the mirror's thread; warns and returns None after a failure
    first_step: number of lines in the metrics file before this run; lines that the destination
        lacks are read from the file
    """

    def __init__(
        self, title: str, run_dir: Path, start: Callable[[], Destination | None], first_step: int
    ) -> None:
        self.failed = False
        self.where = ""  # the sentence of a copy that is complete
        self._title, self._run_dir, self._start = title, run_dir, start
        self._first = self._step = first_step
        self._rows: queue.SimpleQueue[Row | Mapping[str, object] | None] = queue.SimpleQueue()
        self._recorded = Event()
        self._thread = Thread(target=self._follow, daemon=True)
        self._thread.start()

    def write(self, record: Mapping[str, object]) -> None:
        step, self._step = self._step, self._step + 1
        self._recorded.set()
        if self.failed or not (row := row_of(record)):
            return
        if self._rows.qsize() >= MAX_WAITING_ROWS:
            self._fail(f"has accepted none of the last {MAX_WAITING_ROWS} rows")
        else:
            self._rows.put((step, row))

    def finish(self, summary: Mapping[str, object] | None, seconds: float | None = None) -> None:
        """Send the remaining rows; give up after ``seconds``."""
        self._recorded.set()
        self._rows.put(summary)
        self._thread.join(FINISH_SECONDS if seconds is None else seconds)
        if self._thread.is_alive():
            abandoned.set()
            self._fail("did not finish in time")
        elif self.where:
            logger.info(f"{self._title}: {self.where}")

    def _follow(self) -> None:
        """Open the destination, send the rows and close it, on the mirror's thread.

        Importing the package of a destination takes half a second. On the main thread, the import
        would delay the first step.
        """
        self._recorded.wait(HEAD_START)
        try:
            destination = self._start()
        except Exception as error:
            logger.warning(
                f"{self._title} failed to start, so this run is in metrics.jsonl only "
                f"({first_line(error)})"
            )
            destination = None
        if destination is None:
            self.failed = True
            return
        try:
            self._copy(destination)
        except Exception as error:
            self._fail(f"failed ({first_line(error)})")

    def _copy(self, destination: Destination) -> None:
        if destination.first < self._first:
            records = read_lines(metrics_path(self._run_dir, 0))
            missing = islice(enumerate(records), destination.first, self._first)
            destination.log([(step, row) for step, record in missing if (row := row_of(record))])
        ended = False
        while not ended:
            items = [self._rows.get()]
            while not self._rows.empty():
                items.append(self._rows.get())
            rows = [item for item in items if isinstance(item, tuple)]
            if not self.failed:
                destination.log([row for row in rows if row[0] >= destination.first])
            ended = len(rows) < len(items)  # the last item is the summary, or None
        assert not isinstance(items[-1], tuple)
        where = destination.finish(items[-1])
        self.where = "" if self.failed else where

    def _fail(self, what: str) -> None:
        if not self.failed:
            rest = "so the rest of this run is in metrics.jsonl only; sgp-sync sends it later"
            logger.warning(f"{self._title} {what}, {rest}")
        self.failed = True


def row_of(record: Mapping[str, object]) -> dict[str, float]:
    """Return a record's numbers under ``<kind>/<field>``, and ``time_s``; empty for ranks > 0.

    The accuracies over the workers are in the ``average`` record, but are named ``eval/<field>``.
    """
    if record.get("rank", 0) != 0 or record["kind"] == "summary":
        return {}
    row = {
        SPREAD.get(key, f"{record['kind']}/{key}"): value
        for key, entry in record.items()
        if key not in NOT_METRICS and (value := exact(entry)) is not None
    }
    time_s = exact(record["time_s"])
    return {} if time_s is None or not row else {"time_s": time_s, **row}


def exact(value: object) -> float | None:
    """Return ``value`` if it is a number; an integer stays an integer."""
    return value if isinstance(value, int | float) and number(value) is not None else None


def final(summary: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers of a summary under ``final/<field>``."""
    return {
        f"final/{key}": value
        for key, entry in summary.items()
        if (value := exact(entry)) is not None
    }


def training_step(row: Mapping[str, float], before: int) -> int:
    """Return the training step of a row, or ``before`` if the row has no step."""
    return int(next((row[name] for name in STEPS if name in row), before))


def grouped_settings(config: Mapping[str, object]) -> dict[str, object]:
    """Return the settings, with flat names for the choices by which users group runs.

    These choices are ``algorithm``, ``cluster``, ``model``, ``data`` and ``network``. The parts of
    the configuration are under ``settings``.
    """
    parts = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    rest = {key: value for key, value in config.items() if key not in parts}
    return {**choices(config), **rest, "settings": parts}


def flat_settings(config: Mapping[str, object]) -> dict[str, object]:
    """Return the choices by which users group runs, and every setting under its dotted key."""
    return {**choices(config), **dict(flat(config))}


def choices(config: Mapping[str, object]) -> dict[str, object]:
    settings = dict(flat(config))
    names = {name: settings.get(f"{part}.name") for name, part in PARTS.items()}
    return {name: value for name, value in names.items() if value is not None}


def check_installed(name: str, *modules: str) -> None:
    """Raise ConfigError, with the pip command, if a package of the logger ``name`` is missing."""
    require("logger", name, *modules, otherwise=", or logger=csv")


def stored_id(path: Path, new: bool) -> str:
    """Return the id in the file ``path``; for a run that starts over, write a new id first."""
    if new or not path.exists():
        path.write_text(secrets.token_hex(6) + "\n", encoding="utf-8")
    return read_text(path).strip()


def count_lines(run_dir: Path) -> int:
    """Return the number of records in ``metrics.jsonl``."""
    path = metrics_path(run_dir, 0)
    return path.read_bytes().count(b"\n") if path.exists() else 0
