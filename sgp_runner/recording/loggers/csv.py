"""``logger=csv``: ``metrics.csv`` next to ``metrics.jsonl``, with one row for each record."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sgp_runner.config.logger import Listener
from sgp_runner.recording.recorder import metrics_path, read_lines
from sgp_runner.utils.errors import CannotWrite, first_line
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.messages import logger

FIRST = ("kind", "rank", "step", "epoch", "time_s", "clock", "loss", "accuracy")


@dataclass(frozen=True)
class Csv:
    """Writes ``metrics.jsonl`` as a table; the cell of a missing field is empty."""

    copied: ClassVar[str] = "metrics.csv"

    def open(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
    ) -> Listener:
        return CsvTable(run_dir)


class CsvTable:
    """A table whose columns are the fields seen so far.

    The whole table is rewritten from the records on disk when a new field appears or a run
    resumes.
    """

    def __init__(self, run_dir: Path) -> None:
        self.source, self.path = metrics_path(run_dir, 0), run_dir / "metrics.csv"
        self.columns: list[str] = []
        self.failed = False
        self.attempt(self.make_again)

    def write(self, record: Mapping[str, object]) -> None:
        if not self.failed:
            self.attempt(lambda: self.add(record))

    def finish(self, summary: Mapping[str, object] | None) -> None:
        """Do nothing, because every row is already in the file."""

    def attempt(self, work: Callable[[], None]) -> None:
        """Call ``work``, which changes the table; if it fails, warn and stop writing."""
        try:
            work()
        except (CannotWrite, OSError, ValueError) as error:
            self.failed = True
            logger.warning(f"CSV failed, so metrics.csv is incomplete ({first_line(error)})")

    def add(self, record: Mapping[str, object]) -> None:
        if record.keys() <= set(self.columns):
            with self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(self.rows([record]))
        else:
            self.make_again()

    def make_again(self) -> None:
        records = [
            {**record, **record.pop("nonfinite", {})}
            for record in read_lines(self.source)
            if record["kind"] != "summary"
        ]
        keys = dict.fromkeys(key for record in records for key in record)
        self.columns = [*FIRST, *(key for key in keys if key not in FIRST)]
        header = self.rows([dict(zip(self.columns, self.columns, strict=True))])
        replace_file(self.path, header + self.rows(records))

    def rows(self, records: Iterable[Mapping[str, object]]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self.columns, lineterminator="\n").writerows(records)
        return text.getvalue()
