"""Search for run folders below the folders on a command line."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from sgp_runner.utils.errors import ConfigError, printable
from sgp_runner.utils.reading import MIB, read_text

MARKS = ("metrics.jsonl", "summary.json", "environment.json")
COMPARISON = "comparison.csv"
MAX_FOLDERS = 20_000  # that hold no run
MAX_SWEEP_JOBS = 50_000  # of a sweep


def run_folders(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the distinct runs in or below the folders, and a sentence for each omission.

    Folders below a run's folder are not searched. For the folder of a sweep, the runs of the sweep
    are returned. Links to a parent folder are not followed. Raises ConfigError for a path that is
    not a folder.
    """
    runs: dict[Path, Path] = {}  # by their resolved paths
    seen: set[tuple[int, int]] = set()
    skipped = []
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(str(folder), "there is no such folder.")
        waiting = [folder]
        while waiting:
            path = waiting.pop()
            try:
                run_paths, inner = contents(path, seen)
                for run in run_paths:
                    runs.setdefault(run.resolve(), run)
                waiting += reversed(inner)
            except (OSError, ValueError, csv.Error) as error:
                reason = getattr(error, "strerror", None) or error
                skipped.append(left_out(path, f"it cannot be searched ({reason})."))
            if len(seen) > MAX_FOLDERS:
                why = f"there are more than {MAX_FOLDERS} folders without runs."
                skipped.append(left_out(path, why))
                break
    return list(runs.values()), skipped


def contents(folder: Path, seen: set[tuple[int, int]]) -> tuple[list[Path], list[Path]]:
    """Return the runs of a run or sweep folder, and the subfolders of any other folder.

    seen: device and inode of the folders visited so far, which are not visited again
    """
    if is_run(folder):
        return [folder], []
    status = folder.stat()
    if (status.st_dev, status.st_ino) in seen:
        return [], []
    seen.add((status.st_dev, status.st_ino))
    if os.path.isfile(folder / COMPARISON):
        return runs_of_sweep(folder), []
    return [], [
        child
        for child in sorted(folder.iterdir())
        if os.path.isdir(child)
        and not child.name.startswith(".")
        and not (child.is_symlink() and folder.resolve().is_relative_to(child.resolve()))
    ]


def left_out(path: Path, why: str) -> str:
    """Return the sentence for a folder that a report omits."""
    return f"{printable(str(path))} is left out: {printable(why)}"


def runs_of_sweep(folder: Path) -> list[Path]:
    """Return the runs in the table of a sweep whose folders still exist."""
    table = csv.DictReader(io.StringIO(read_text(folder / COMPARISON, 16 * MIB), newline=""))
    names = {row["run_dir"]: Path(row["run_dir"]) for row in table if row.get("run_dir")}
    if len(names) > MAX_SWEEP_JOBS:
        raise ValueError(f"its {COMPARISON} has more than {MAX_SWEEP_JOBS} runs")
    # Paths are relative to where the sweep was started; runs/ and sweeps/ have the same parent.
    beside = folder.resolve().parent.parent / "runs"
    both = ((name, beside / name.name) for name in names.values())
    return [path for pair in both for path in [next(filter(is_run, pair), None)] if path]


def is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in MARKS)
