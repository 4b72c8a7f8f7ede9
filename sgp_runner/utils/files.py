"""Checksums of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sgp_runner.utils.reading import open_regular


def checksum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def short_path(path: Path) -> str:
    """Return ``path``, relative to the working directory if it lies below this directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
