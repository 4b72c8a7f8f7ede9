"""Results on disk: ``metrics.jsonl`` and ``summary.json``, which marks a finished run.

``metrics.jsonl`` has one JSON object per line. ``kind`` determines its other fields:

* ``train``: ``rank step epoch time_s clock loss lr bytes_sent staleness push_sum_weight``
* ``server``: ``step epoch time_s clock lr bytes_sent staleness`` of a parameter server; its steps
  are gradients of all workers
* ``eval``: ``rank step epoch time_s clock loss accuracy`` and the task's own metrics (``bleu``)
* ``average``: ``epoch time_s clock loss accuracy consensus_distance accuracy_mean accuracy_min
  accuracy_max push_sum_weight_min push_sum_weight_max``; the averaged model, and the spread over
  the workers
* ``lost``: ``ranks epoch time_s clock nodes``; these ranks were lost, and ``nodes`` continued from
  ``epoch``
* ``rejoined``: likewise of lost ranks that took part again once the run was resumed
* ``summary``: once, last

``time_s`` is in seconds of the clock named in ``clock``, ``"simulated"`` or ``"wall"``.
``accuracy`` lies in [0, 1].

JSON has no NaN and no infinity. Such a value is written as ``null`` and spelt out beside it, so
that "diverged" and "not measured" stay apart: ``{"loss": null, "nonfinite": {"loss": "inf"}}``.
Listeners receive the original numbers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sgp_runner.config.logger import Listener
from sgp_runner.utils.errors import CannotWrite, ConfigError

if TYPE_CHECKING:
    from sgp_runner.config.experiment import Experiment

KINDS = ("train", "server", "eval", "average", "lost", "rejoined", "summary")


class Recorder:
    """Appends records to this process rank's file, whole lines only, then passes them to listeners.

    Rank 0, and the simulator, write ``metrics.jsonl``; rank R of a real run writes
    ``metrics.rankR.jsonl``, so that no two processes share a file. The file continues at byte
    ``start``: a resumed run records again what came after its checkpoint. As a context manager,
    leaving without ``finish`` signals to the listeners that the run did not finish.
    """

    def __init__(
        self, run_dir: Path, rank: int, listeners: tuple[Listener, ...], start: int = 0
    ) -> None:
        self.path = metrics_path(run_dir, rank)
        self._listeners = listeners
        self._finished = False
        run_dir.mkdir(parents=True, exist_ok=True)
        trim(self.path, start)
        self._file = self.path.open("ab", buffering=0)

    def num_bytes(self) -> int:
        """Flush the file to the disk and return its length."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CannotWrite(self.path, error) from error
        return os.fstat(self._file.fileno()).st_size

    def write(self, record: Mapping[str, object]) -> None:
        """Write one record (not a ``summary``); it is in the file when this returns.

        Raises ValueError for an unknown ``kind`` or a missing ``time_s``, TypeError for a value
        that JSON cannot hold, such as a tensor, CannotWrite if the disk is full; nothing is written
        then.
        """
        self._append(record)
        for listener in self._listeners:
            listener.write(record)

    def finish(self, summary: Mapping[str, object] | None) -> None:
        """Write the ``summary``, if there is one, and close listeners and file, once."""
        if self._finished:
            return
        self._finished = True
        try:
            if summary is not None:
                self._append({"kind": "summary", **summary})
        finally:
            self._file.close()
            for listener in self._listeners:
                listener.finish(summary)

    def _append(self, record: Mapping[str, object]) -> None:
        if record.get("kind") not in KINDS or "time_s" not in record:
            raise ValueError(
                f"a record needs a kind among {KINDS} and a time_s, got {dict(record)}"
            )
        rest = memoryview((as_json(record) + "\n").encode())
        end = os.fstat(self._file.fileno()).st_size
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise CannotWrite(self.path, error) from error

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
    """Return the file that process rank ``rank`` writes."""
    return run_dir / ("metrics.jsonl" if rank == 0 else f"metrics.rank{rank}.jsonl")


def read_metrics(run_dir: Path) -> list[dict[str, object]]:
    """Return the records of all ranks by ``time_s``, the summary last.

    Records at the same time keep the order of their file, rank 0 first. An incomplete last line is
    left out. Raises ValueError, naming file and line, for a damaged line elsewhere.
    """
    others = sorted(run_dir.glob("metrics.rank*.jsonl"), key=_rank)
    paths = [metrics_path(run_dir, 0), *others]
    records = [record for path in paths for record in read_lines(path)]
    return sorted(records, key=lambda record: (record["kind"] == "summary", _seconds(record)))


def trim(path: Path, num_bytes: int) -> None:
    """Truncate or create a file with ``num_bytes``. Raises ConfigError if it is shorter."""
    try:
        with path.open("ab") as file:
            have = file.tell()
            if have < num_bytes:
                raise ConfigError(
                    "resume",
                    f"{path} has {have} bytes, but its checkpoint needs {num_bytes}: "
                    "start over with resume=never.",
                )
            file.truncate(num_bytes)
    except OSError as error:
        raise ConfigError("results", f"cannot write to {path}: {error.strerror}.") from error


def num_whole_lines(run_dir: Path, rank: int) -> int:
    """Return the bytes of the whole lines that process rank ``rank`` has written."""
    path = metrics_path(run_dir, rank)
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def write_summary(run_dir: Path, summary: Mapping[str, object]) -> None:
    """Write ``summary.json`` atomically: the file exists only if the run finished."""
    replace_file(run_dir / "summary.json", as_json(summary, indent=2) + "\n")


def read_summary(run_dir: Path) -> dict[str, object] | None:
    """Return the summary of a finished run; None if there is no readable one."""
    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def finished(experiment: Experiment) -> dict[str, object] | None:
    """Return the summary if this run has finished before, with the same settings."""
    return read_summary(experiment.directory) if experiment.run.resume == "auto" else None


def as_json(record: Mapping[str, object], indent: int | None = None) -> str:
    """Return one record, or a summary, as text."""
    bad = {
        key: str(value)
        for key, value in record.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    if bad:
        record = {**record, **dict.fromkeys(bad), "nonfinite": bad}
    return json.dumps(record, allow_nan=False, ensure_ascii=False, indent=indent)


def read_lines(path: Path) -> list[dict[str, object]]:
    """Return the records of one rank; see `read_metrics`."""
    if not path.exists():
        return []
    # The text after the last newline is empty, or the incomplete line of a killed process.
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records: list[dict[str, object]] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({error})") from error
    return records


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically. Raises CannotWrite."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise CannotWrite(path, error) from error
    # The directory caches the new name; not every system can open a directory.
    with contextlib.suppress(OSError):
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _rank(path: Path) -> int:
    return int(path.name.removeprefix("metrics.rank").removesuffix(".jsonl"))


def _seconds(record: Mapping[str, object]) -> float:
    time_s = record["time_s"]
    return float(time_s) if isinstance(time_s, int | float) else math.inf
