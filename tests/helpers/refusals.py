"""Commands that are refused: one sentence that names the key, exit code 2, nothing written; and
what a call is refused with.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sgp_runner.cli.main import main
from sgp_runner.utils.errors import ConfigError

TINY = [
    "model=quadratic",
    "data.samples=64",
    "data.dimension=4",
    "nodes=2",
    "epochs=2",
    "logger=jsonl",
    "name=mine",
    "log_every=1",
]
TOO_LONG = "a whole number has at most 20 digits: use a smaller one."


def typed(command: str) -> list[str]:
    """Split a command line at spaces, unless there is a quotation."""
    return (
        [command]
        if "'a b'" in command
        else command.encode().decode("unicode_escape").split()
        if "\\" in command
        else command.split()
    )


def refused(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the error of a refused command, after checking that it has written nothing."""
    before = sorted(str(path) for path in Path().rglob("*"))
    assert main(arguments) == 2
    out, error = capfd.readouterr()
    assert "Traceback" not in out + error and error.count("\n") == 1
    assert sorted(str(path) for path in Path().rglob("*")) == before
    return error


def check_refused(command: str, key: str, sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Check the key of the error and the beginning of its sentence."""
    Path("graph.txt").write_text("0 0\n")
    assert refused(typed(command), capfd).startswith(f"sgp-run: {key}: {sentence}")


def refusal(call: Callable[..., object], *arguments: Any, **settings: Any) -> ConfigError:
    """Return the error of a call that is refused."""
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **settings)
    return caught.value


def accepted(call: Callable[..., object], *arguments: Any) -> bool:
    try:
        call(*arguments)
    except ConfigError:
        return False
    return True
