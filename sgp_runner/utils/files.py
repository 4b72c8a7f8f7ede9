"""Checksums of files, hidden files, and atomic writes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sgp_runner.utils.errors import CannotWrite
from sgp_runner.utils.reading import open_regular


def checksum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_hidden(path: str) -> bool:
    """Return whether a file or one of its folders is hidden, such as .ipynb_checkpoints."""
    return any(part.startswith(".") and part != "." for part in path.split("/"))


class HashingWriter:
    """A writer that writes to ``file`` sequentially and computes the checksum of the data."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    @property
    def checksum(self) -> str:
        return self.hash.hexdigest()


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically. Raises CannotWrite."""
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: Path, suffix: str = "") -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` at the end of the block. Raises CannotWrite.

    suffix: distinguishes the unfinished file from those of other machines
    """
    part = path.with_name(f".{path.name}{suffix}.part")
    try:
        with synced(part) as file:
            yield file
        part.replace(path)
    except (OSError, RuntimeError) as error:  # torch.save turns an OSError into a RuntimeError
        with contextlib.suppress(OSError):
            part.unlink()
        raise CannotWrite(path, error) from error
    with contextlib.suppress(OSError):  # not every system can open a folder
        sync(path.parent)


@contextlib.contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing and flush it to the disk at the end of the block."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Flush the entries of a folder to the disk; they are cached separately from file contents."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
