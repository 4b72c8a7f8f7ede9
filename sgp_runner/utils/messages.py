"""Messages to the user, through the logger ``sgp_runner``.

Commands and ``sgp_runner.run`` show information on stdout, and warnings and errors on stderr. Other
programs can configure the logger like any logger.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sgp_runner.utils.secrets import redacted
from sgp_runner.utils.variables import setting

QUIET = "SGP_RUN_QUIET"  # environment variable: "1" hides information and progress
PREFIXES = {logging.WARNING: "warning: ", logging.ERROR: "sgp-run: "}

logger = logging.getLogger("sgp_runner")


class Terminal(logging.Handler):
    """Handler that writes messages, without secrets, to ``sys.stdout`` or ``sys.stderr``."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stdout if record.levelno <= logging.INFO else sys.stderr
        prefix = PREFIXES.get(record.levelno, "")
        print(redacted(prefix + record.getMessage()), file=stream, flush=True)


def show_messages() -> None:
    """Show the messages of this process; a second call only changes whether it is quiet."""
    if not any(isinstance(handler, Terminal) for handler in logger.handlers):
        logger.addHandler(Terminal())
    logger.propagate = False
    logger.setLevel(logging.WARNING if os.environ.get(QUIET) == "1" else logging.INFO)


@contextmanager
def showing_messages(verbose: bool) -> Iterator[None]:
    """Show messages in this process and processes started from it.

    verbose: true: all messages; false: only warnings and errors"""
    before = logger.handlers[:], logger.propagate, logger.level
    with setting(**({} if verbose else {QUIET: "1"})):
        show_messages()
        try:
            yield
        finally:
            logger.handlers[:], logger.propagate, level = before
            logger.setLevel(level)


def is_quiet() -> bool:
    """Return whether messages of level INFO are hidden."""
    return not logger.isEnabledFor(logging.INFO)
