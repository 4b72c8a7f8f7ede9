"""Checksums of files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from sgp_runner.utils.reading import open_regular


def checksum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class HashingWriter:
    """Writes to ``file`` from its beginning to its end, and knows the checksum of what it wrote."""

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


def short_path(path: Path) -> str:
    """Return ``path``, relative to the working directory if it lies below this directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
