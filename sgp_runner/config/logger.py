"""The interfaces of a logger and of a listener to a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Listener(Protocol):
    """Follows a run while it is recorded: the console, a mirror of the metrics."""

    def write(self, record: Mapping[str, object]) -> None:
        """Take one record, after it has reached the file."""

    def finish(self, summary: Mapping[str, object] | None) -> None:
        """Take the run's summary, or None when the run did not finish. Called once, last."""


class Logger(Protocol):
    """A choice of the group ``logger``."""

    def open(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
    ) -> Listener:
        """Start following the run called ``name``; ``group`` is its sweep, if any.

        Never raises: a mirror that cannot start says so in one line on stderr.
        """
