"""Checksums of files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
