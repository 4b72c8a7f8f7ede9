"""Environment variables, which child processes inherit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sgp_runner.utils.errors import ConfigError

# ``python -m`` and ``python -c``, with which multiprocessing starts its servers too, import from
# the present folder first: a ``torch.py`` next to somebody's results would run.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}

SWITCHES = ("SGP_RUN_QUIET", "SGP_RUN_TRACEBACK")  # that a user may set to 1


def check_switches() -> None:
    """Raise ConfigError for a switch of ``sgp-run`` that is neither 0 nor 1."""
    for name in SWITCHES:
        if (value := os.environ.get(name, "")) not in ("", "0", "1"):
            raise ConfigError(name, f"'{value}' is neither 0 nor 1: write {name}=1, or unset it.")


@contextmanager
def setting(**variables: str) -> Iterator[None]:
    """Set environment variables, and restore the previous values on exit."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
