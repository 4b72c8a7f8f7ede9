"""The interfaces of a logger and of a listener to a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable


class Listener(Protocol):
    """A consumer of records during a run, such as the console or a mirror of the metrics."""

    def write(self, record: Mapping[str, object]) -> None:
        """Receive a record that has been written to the file."""

    def finish(self, summary: Mapping[str, object] | None) -> None:
        """Receive the summary, or None if the run did not finish. This is the last call."""


class Logger(Protocol):
    """A choice of the group ``logger``.

    A class attribute ``copied`` names a file that a copy leaves in the folder of the run. Without
    this file, the command of a finished run makes the copy.
    """

    def open(
        self,
        run_dir: Path,
        name: str,
        config: Mapping[str, object],
        tags: Sequence[str],
        group: str | None,
    ) -> Listener:
        """Return a listener for the run called ``name``; ``group`` is its sweep, if any.

        Never raises: if a mirror cannot start, it prints one line on stderr.
        """


@runtime_checkable
class NeedsPackages(Protocol):
    """A logger that needs optional packages or environment variables."""

    def check_installed(self) -> None:
        """Raise ConfigError if packages (giving the pip command) or variables are missing."""


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
        """Open a copy of a run with ``first_step`` earlier records; 0 starts a new copy."""


class Copying(Listener, Protocol):
    """A listener that copies records; it warns about errors and continues."""

    @property
    def failed(self) -> bool: ...
    def finish(self, summary: Mapping[str, object] | None, seconds: float | None = None) -> None:
        """Finish the copy; wait at most ``seconds`` until the destination has the last records."""
