"""Commands that are signalled as they call a function: see ``shots/sitecustomize.py``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from helpers.commands import run_command
from helpers.paths import HELPERS
from helpers.processes import hear_interrupts

COMMAND = (sys.executable, "-m", "sgp_runner")
Shot = tuple[str, str, int, str, int]
LOGGED_BY_GLOO = re.compile(r"^\[\S*/gloo/\S+:\d+\] .*\n", re.MULTILINE)


def shot(where: str, name: str, rank: str = "", to: str = "self", count: int = 1) -> Shot:
    return rank, to, signal.Signals[name], where, count


def variables_of(shots: list[Shot]) -> dict[str, str]:
    """Return the environment variables of a command that is signalled.

    Without PyTorch's own log, in which a rank may be reported that ends as the others connect.
    """
    path = f"{HELPERS / 'shots'}:{os.environ.get('PYTHONPATH', '')}"
    return {"PYTHONPATH": path, "SHOTS": json.dumps(shots), "TORCH_CPP_LOG_LEVEL": "FATAL"}


def run(
    folder: Path,
    *arguments: str,
    shots: list[Shot],
    wrapped: str | None = None,
    command: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Exit code and stderr of a command in ``folder`` that is signalled on its way.

    command: sgp-run if empty; then it is forked, unless it is signalled at an import

    Without the lines of gloo's own log, which reports each attempt to connect to a rank that has
    ended.
    """
    extra = variables_of(shots) | (variables or {})
    extra |= {} if wrapped is None else {"WRAPPED": wrapped}
    if command or any(where.endswith(":") for _, _, _, where, _ in shots):
        done = subprocess.run(
            [*(command or COMMAND), *arguments],
            check=False,
            cwd=folder,
            env=os.environ | extra,
            preexec_fn=hear_interrupts,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=1200,
        )
    else:
        done = run_command(*arguments, folder=folder, variables=extra)
    return done.returncode, LOGGED_BY_GLOO.sub("", done.stderr)
