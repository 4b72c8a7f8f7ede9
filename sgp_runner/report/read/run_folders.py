"""The folders of runs below the folders that a report was asked for."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from sgp_runner.utils.errors import ConfigError, printable
from sgp_runner.utils.reading import MIB, read_text

MARKS = ("metrics.jsonl", "summary.json", "environment.json")
COMPARISON = "comparison.csv"
MAX_FOLDERS = 20_000  # that hold no run
MAX_SWEEP_JOBS = 50_000  # of a sweep


def run_folders(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the runs in or below the folders, each once, and a sentence for what is left out.

    A folder with a run is that run alone, one of a sweep the runs of the sweep. Links that lead up
    are not followed. Raises ConfigError for a folder that is none.
    """
    search = RunSearch()
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(str(folder), "there is no such folder.")
        search.below(folder)
    return list(search.runs.values()), search.skipped


class RunSearch:
    """A search for runs.

    runs: by their resolved paths
    skipped: a sentence for each folder that cannot be searched
    """

    def __init__(self) -> None:
        self.runs: dict[Path, Path] = {}
        self.skipped: list[str] = []
        self.seen: set[tuple[int, int]] = set()

    def below(self, folder: Path) -> None:
        """Add the runs in or below a folder."""
        waiting = [folder]
        while waiting:
            path = waiting.pop()
            try:
                waiting += reversed(self.inner(path))
            except (OSError, ValueError, csv.Error) as error:
                reason = getattr(error, "strerror", None) or error
                self.skip(path, f"it cannot be searched ({reason}).")
            if len(self.seen) > MAX_FOLDERS:
                self.skip(path, f"there are more than {MAX_FOLDERS} folders without runs.")
                return

    def inner(self, folder: Path) -> list[Path]:
        """Add the run or the sweep in a folder, or return the folders in it."""
        if is_run(folder):
            self.add([folder])
            return []
        status = folder.stat()
        if (status.st_dev, status.st_ino) in self.seen:
            return []
        self.seen.add((status.st_dev, status.st_ino))
        if os.path.isfile(folder / COMPARISON):
            self.add(runs_of_sweep(folder))
            return []
        return [
            child
            for child in sorted(folder.iterdir())
            if os.path.isdir(child) and not child.name.startswith(".") and not leads_up(child)
        ]

    def add(self, runs: Iterable[Path]) -> None:
        for path in runs:
            self.runs.setdefault(path.resolve(), path)

    def skip(self, path: Path, why: str) -> None:
        self.skipped.append(left_out(path, why))


def left_out(path: Path, why: str) -> str:
    """Return the sentence for a folder that a report leaves out."""
    return f"{printable(str(path))} is left out: {printable(why)}"


def leads_up(path: Path) -> bool:
    """Whether a link leads to a folder that it lies in."""
    return path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve())


def runs_of_sweep(folder: Path) -> list[Path]:
    """Return the runs in the table of a sweep that are still there."""
    table = csv.DictReader(io.StringIO(read_text(folder / COMPARISON, 16 * MIB), newline=""))
    names = {row["run_dir"]: Path(row["run_dir"]) for row in table if row.get("run_dir")}
    if len(names) > MAX_SWEEP_JOBS:
        raise ValueError(f"its {COMPARISON} has more than {MAX_SWEEP_JOBS} runs")
    # Paths are relative to where the sweep was started; runs/ lies beside sweeps/.
    beside = folder.resolve().parent.parent / "runs"
    both = ((name, beside / name.name) for name in names.values())
    return [path for pair in both for path in [next(filter(is_run, pair), None)] if path]


def is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in MARKS)
