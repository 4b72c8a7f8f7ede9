"""Results on disk: ``metrics.jsonl`` and ``summary.json``, which marks a finished run.

``metrics.jsonl`` has one JSON object per line. ``kind`` determines its other fields:

* ``train``: ``rank step epoch time_s clock loss lr bytes_sent staleness push_sum_weight``, the
  means of what an algorithm logged (`Worker.log`) and, in real runs, the rates of the node since
  its last record: ``samples_per_s tokens_per_s flops_per_s mfu waiting_share``
  (`sgp_runner.recording.throughput`)
* ``server``: ``step epoch time_s clock lr bytes_sent staleness`` of a parameter server; its steps
  are gradients of all workers
* ``eval``: ``rank step epoch time_s clock loss accuracy`` and the task's own metrics (``bleu``)
* ``average``: ``epoch time_s clock loss accuracy consensus_distance accuracy_mean accuracy_min
  accuracy_max push_sum_weight_min push_sum_weight_max``; the averaged model, and the spread over
  the workers
* ``lost``: ``ranks epoch time_s clock nodes steps``; these ranks were lost, and ``nodes``
  continued from ``epoch``
* ``rejoined``: same fields; these lost ranks took part again after the run was resumed
* ``resized``: ``run step nodes_before epoch time_s clock nodes steps``; the first record of a run
  that continues step ``step`` of ``run``, which had ``nodes_before`` nodes (resume=resize)
* ``summary``: once, last

``time_s`` is in seconds of the clock ``clock``, ``"simulated"`` or ``"wall"``.
``accuracy`` lies in [0, 1].

JSON has no NaN and no infinity. A non-finite value is written as ``null`` and as text in
``nonfinite``, so that "diverged" and "not measured" differ:
``{"loss": null, "nonfinite": {"loss": "inf"}}``.
Listeners receive the original numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from sgp_runner.config.experiment import Experiment
from sgp_runner.config.logger import Listener
from sgp_runner.recording.evaluation_meter import EvaluationMeter
from sgp_runner.utils.errors import CannotWrite, ConfigError, RecordsLost
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.reading import MIB, check_regular, open_regular, parse_json, read_json
from sgp_runner.utils.reading import read_lines as lines_of
from sgp_runner.utils.units import number

OPENING = os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not block
ONE_LINE = json.JSONEncoder(allow_nan=False, ensure_ascii=False)
KINDS = ("train", "server", "eval", "average", "lost", "rejoined", "resized", "summary")


@dataclass(frozen=True)
class Position:
    """The records of one rank up to a checkpoint.

    num_bytes: size of the records
    checksum: SHA-256 of the records; None if unknown (checkpoints of earlier versions)
    """

    num_bytes: int = 0
    checksum: str | None = None


START = Position()


@dataclass
class LineFile:
    """An unbuffered file to which whole lines are appended.

    checksum: SHA-256 of the content
    size: number of bytes in the file
    """

    path: Path
    file: io.FileIO
    checksum: Any = field(default_factory=hashlib.sha256)
    size: int = 0

    def append(self, lines: bytes) -> None:
        """Append ``lines``, or raise CannotWrite and leave the file unchanged."""
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self.file.truncate(os.fstat(self.file.fileno()).st_size - (len(lines) - len(rest)))
            raise CannotWrite(self.path, error) from error
        self.size += len(lines)
        self.checksum.update(lines)


class Recorder:
    """Recorder that appends whole lines to the file of a process rank, and informs listeners.

    Rank 0, and the simulator, write ``metrics.jsonl``; rank R of a real run writes
    ``metrics.rankR.jsonl``, so that no two processes share a file. The file continues at ``start``:
    a resumed run records the steps after its checkpoint again. If a ``with`` block ends without
    ``finish``, the listeners are finished without a summary. ``meter`` measures the evaluations.
    """

    def __init__(
        self,
        run_dir: Path,
        rank: int,
        listeners: tuple[Listener, ...],
        start: Position = START,
        meter: EvaluationMeter | None = None,
    ) -> None:
        self.meter = meter or EvaluationMeter()
        self.path = metrics_path(run_dir, rank)
        self._listeners = listeners
        self._finished = False
        run_dir.mkdir(parents=True, exist_ok=True)
        self._lines = continued(self.path, start)

    def position(self) -> Position:
        """Flush the file to the disk and return its position. Raises CannotWrite or RecordsLost."""
        try:
            os.fsync(self._lines.file.fileno())
        except OSError as error:
            raise CannotWrite(self.path, error) from error
        self.check()
        return Position(self._lines.size, self._lines.checksum.hexdigest())

    def check(self) -> None:
        """Raise RecordsLost if the file was removed, replaced or changed in size."""
        try:
            there = self.path.stat()
        except OSError:
            raise RecordsLost(self.path, "was removed") from None
        if not os.path.samestat(there, os.fstat(self._lines.file.fileno())):
            raise RecordsLost(self.path, "was replaced")
        if there.st_size != self._lines.size:
            raise RecordsLost(self.path, "was changed")

    def write(self, record: Mapping[str, object]) -> None:
        """Write one record (not a ``summary``) to the file, without buffering.

        Raises ValueError for an unknown ``kind`` or a missing ``time_s``, TypeError for a value
        that JSON cannot hold, such as a tensor, and CannotWrite if the disk is full. After an
        error the file is unchanged.
        """
        self._append(record)
        for listener in self._listeners:
            listener.write(record)

    def finish(self, summary: Mapping[str, object] | None) -> None:
        """Write the ``summary``, if any, and close listeners and file; later calls have no effect.

        Raises RecordsLost, before a summary is written, if `check` finds the file changed.
        """
        if self._finished:
            return
        self._finished = True
        try:
            if summary is not None:
                self.check()
                self._append({"kind": "summary", **summary})
        finally:
            self._lines.file.close()
            for listener in self._listeners:
                listener.finish(summary)

    def _append(self, record: Mapping[str, object]) -> None:
        if record.get("kind") not in KINDS or "time_s" not in record:
            raise ValueError(
                f"a record needs a kind among {KINDS} and a time_s, got {dict(record)}"
            )
        self._lines.append((as_json(record) + "\n").encode())

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(None)


def metrics_path(run_dir: Path, rank: int) -> Path:
    """Return the path of the file that process rank ``rank`` writes."""
    return run_dir / ("metrics.jsonl" if rank == 0 else f"metrics.rank{rank}.jsonl")


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the records of all ranks by ``time_s``, the summary last.

    Records at the same time keep the order of their file, rank 0 first. An incomplete last line is
    left out. Raises ValueError, with file and line, for any other damaged line.
    """
    others = sorted(
        run_dir.glob("metrics.rank*.jsonl"), key=lambda path: int(path.stem.partition("rank")[2])
    )
    paths = [metrics_path(run_dir, 0), *others]
    records = [record for path in paths for record in read_lines(path)]

    def order(record: Mapping[str, object]) -> tuple[bool, float]:
        seconds = number(record["time_s"])
        return record["kind"] == "summary", math.inf if seconds is None else seconds

    return sorted(records, key=order)


def trim(path: Path, start: Position) -> None:
    """Truncate or create a file of records. Raises the ConfigError of `continued`."""
    continued(path, start).file.close()


def continued(path: Path, start: Position) -> LineFile:
    """Open a file of records to continue it at ``start``.

    If its records up to ``start`` differ from those at the checkpoint, raises ConfigError and
    leaves the file unchanged.
    """
    try:
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | OPENING, 0o666), "r+")
        with contextlib.ExitStack() as unless_complete:
            unless_complete.callback(file.close)
            check_regular(file.fileno(), path)
            checksum = verified(path, file, start)
            file.truncate(start.num_bytes)
            unless_complete.pop_all()
    except OSError as error:
        raise ConfigError("results", f"cannot write to {path}: {error.strerror}.") from error
    return LineFile(path, file, checksum, start.num_bytes)


def verified(path: Path, file: io.FileIO, start: Position) -> Any:
    """Return the SHA-256 of a file up to ``start``. Raises ConfigError if the content differs."""
    checksum, left, last = hashlib.sha256(), start.num_bytes, b"\n"
    file.seek(0)
    while left and (data := file.read(min(left, MIB))):
        checksum.update(data)
        left, last = left - len(data), data[-1:]
    way_out = "start over with resume=never."
    if left:
        raise ConfigError(
            "resume",
            f"{path} has {start.num_bytes - left} bytes, but its checkpoint needs "
            f"{start.num_bytes}: {way_out}",
        )
    if start.checksum not in (None, checksum.hexdigest()) or last != b"\n":
        raise ConfigError(
            "resume", f"the records in {path} differ from those at the checkpoint: {way_out}"
        )
    return checksum


def num_whole_lines(run_dir: Path, rank: int) -> int:
    """Return the size in bytes of the complete lines of process rank ``rank``."""
    path = metrics_path(run_dir, rank)
    if not path.exists():
        return 0
    with open_regular(path) as file:
        return file.read().rfind(b"\n") + 1


def write_summary(run_dir: Path, summary: Mapping[str, object]) -> None:
    """Write ``summary.json`` atomically: the file exists only if the run finished."""
    replace_file(run_dir / "summary.json", as_json(summary, indent=2) + "\n")


def read_summary(run_dir: Path) -> dict[str, object] | None:
    """Return the summary of a finished run; None if there is no readable summary."""
    try:
        summary = read_json(run_dir / "summary.json")
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def finished(experiment: Experiment) -> dict[str, object] | None:
    """Return the summary if this run has finished before.

    Raises ConfigError if the records that belong to the summary are missing.
    """
    directory, run = experiment.directory, experiment.run
    summary = read_summary(directory) if run.resume == "auto" else None
    if summary is None:
        return None
    way_out = "put the files of the run back, or start over with resume=never."
    real = run.network.clock == "wall"
    lost = summary.get("lost") if real else None
    metrics = [
        metrics_path(directory, rank)
        for rank in range(run.nodes + run.algo.servers if real else 1)
        if not isinstance(lost, list) or rank not in lost
    ]
    for path in (directory / "config.yaml", *metrics):
        if not path.is_file():
            raise ConfigError("resume", f"this run has finished, but {path} is missing: {way_out}")
    path = metrics_path(directory, 0)
    if last_record(path) != {"kind": "summary", **summary}:
        raise ConfigError(
            "resume",
            f"this run has finished, but {path} does not end with its summary: {way_out}",
        )
    return summary


def last_record(path: Path) -> dict[str, Any] | None:
    """Return the record in the last line of a file; None if the line is not a record."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MIB))
            *_, line = file.read(MIB).splitlines(keepends=True) or [b""]
        return record_in(line)
    except (OSError, ValueError):
        return None


def as_json(record: Mapping[str, object], indent: int | None = None) -> str:
    """Return a record or a summary as JSON."""
    bad = {
        key: str(value)
        for key, value in record.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    if bad:
        record = {**record, **dict.fromkeys(bad), "nonfinite": bad}
    if indent is None:
        return ONE_LINE.encode(record)
    return json.dumps(record, allow_nan=False, ensure_ascii=False, indent=indent)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of one rank; see `read_metrics`."""
    records: list[dict[str, Any]] = []
    try:
        for number, line in enumerate(lines_of(path), start=1):
            if not line.endswith(b"\n"):  # the incomplete line of a killed process
                break
            try:
                records.append(record_in(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not a JSON object ({error})") from error
    except FileNotFoundError:
        return []
    return records


def record_in(line: bytes) -> dict[str, Any]:
    record = parse_json(line.decode("utf-8", errors="replace"))
    if not isinstance(record, dict):
        raise ValueError("it has no names")
    for key in ("kind", "time_s"):
        if key not in record:
            raise ValueError(f"it has no {key}")
    return record


def record_gpus(directory: Path, gpus: list[dict[str, object] | None]) -> None:
    """Add the GPU of every process to ``environment.json``; change nothing if there is no GPU."""
    path = directory / "environment.json"
    if any(gpus) and path.exists():
        replace_file(path, json.dumps({**read_json(path), "gpus": gpus}, indent=2) + "\n")
