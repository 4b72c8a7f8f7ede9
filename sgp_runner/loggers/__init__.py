"""Where the metrics of a run go besides ``metrics.jsonl``; one file per logger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sgp_runner.recorder import Listener


class Logger(Protocol):
    """A choice of the group ``logger``."""

    def open(self, run_dir: Path, name: str, config: Mapping[str, object], tags: Sequence[str], group: str | None) -> Listener:
        """Starts following the run called ``name``; ``group`` is the sweep it belongs to, if any.

        Never raises: a mirror that cannot start says so in one line on stderr.
        """
