"""Damaged archives: finding the first file that cannot be read, and why."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sgp_runner.studies.study_archive import StudyArchive, VerificationFailed
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import MIB, parse_json, read_json, read_lines, read_text, read_yaml

MAX_TABLE = 16 * MIB
NUMBERS = (
    "time_s",
    "step",
    "epoch",
    "lr",
    "loss",
    "accuracy",
    "bleu",
    "bytes_sent",
    "bytes_per_node",
)
# What reading damaged files raises, and computing with their contents.
DAMAGE = (
    *(OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(AssertionError, StopIteration),
)


@contextmanager
def damage_named(archive: StudyArchive) -> Iterator[None]:
    """Convert errors in the block to a VerificationFailed that names the first damaged file."""
    try:
        yield
    except (VerificationFailed, ConfigError):
        raise
    except DAMAGE as error:
        raise VerificationFailed(f"{damage_in(archive)}.") from error


def damage_in(archive: StudyArchive) -> str:
    """Return a sentence, without its full stop, about the first damaged file."""
    for name in archive.files:
        try:
            check_file(archive.folder / name)
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        except ValueError as error:
            reason = str(error).replace(f"{archive.folder}/", "").partition("\n")[0]
            return f"{name} is damaged: {reason}"
    return "its runs give no result"


def check_file(path: Path) -> None:
    """Raise OSError or ValueError for a file of an archive that cannot be read."""
    if path.suffix == ".csv":
        rows_in(path)
    elif path.suffix == ".jsonl":
        for number, line in enumerate(read_lines(path), start=1):
            check_record(parse_json(line.decode()), f"line {number}")
    elif not isinstance(read_yaml(path) if path.suffix == ".yaml" else read_json(path), dict):
        raise ValueError("it is not a mapping")


def check_record(record: object, where: str) -> None:
    """Raise ValueError unless the known numeric fields of a record are numbers."""
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise ValueError(f"{where} is not a record")
    for key in NUMBERS:
        if not isinstance(record.get(key), int | float | None):
            raise ValueError(f"{key} in {where} is not a number")


def rows_in(path: Path) -> list[list[str]]:
    """Return the rows of a table. Raises OSError or ValueError if the file is not a table."""
    return rows_of(read_text(path, MAX_TABLE))


def rows_of(text: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error:
        most = csv.field_size_limit()
        raise ValueError(f"it is not a table, or has a cell of over {most} characters") from None
