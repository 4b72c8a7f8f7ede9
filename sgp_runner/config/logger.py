"""The interfaces of a logger and of a listener to a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable


class Listener(Protocol):
    """A consumer of a run's records while it is recorded: the console, a mirror of the metrics."""

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

        Never raises: if a mirror cannot start, it prints one line on stderr.
        """


@runtime_checkable
class NeedsPackages(Protocol):
    """A logger whose packages are optional."""

    def check_installed(self) -> None:
        """Raise ConfigError, with the command to install them, unless they are installed."""


@runtime_checkable
class Copies(Protocol):
    """A logger that can copy a recorded run afterwards."""

    def mirror(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
        first_step: int,
    ) -> Copying:
        """Open a copy of the run that has ``first_step`` records already; 0 for a new copy."""


class Copying(Listener, Protocol):
    """A listener that copies records; it warns about errors and continues."""

    @property
    def failed(self) -> bool: ...
    def finish(self, summary: Mapping[str, object] | None, seconds: float | None = None) -> None:
        """Finish the copy; the last records have ``seconds`` to arrive."""
