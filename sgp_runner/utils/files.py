"""Checksums of files, and the signals that ask a run to save and stop."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path

from sgp_runner.utils.reading import open_regular

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def checksum(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
