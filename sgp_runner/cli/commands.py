"""The console scripts.

Each script installs signal handlers before other imports. Python processes that a script starts do
not import modules from the current folder.
"""

import importlib
import os
from functools import partial
from typing import NoReturn

from sgp_runner.utils.signals import end, install
from sgp_runner.utils.variables import SAFE_PATH

# A process with one of these variables may be one of several ranks (`sgp_runner.utils.launchers`).
OF_RANKS = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID"}


def start(command: str, module: str, deferred: bool = False) -> NoReturn:
    """Run ``main`` of a module of this package and end the process with its exit code."""
    install(command, deferred)
    os.environ.update(SAFE_PATH)
    end(importlib.import_module(f"sgp_runner.cli.{module}").main())


def sgp_run() -> NoReturn:
    start("sgp-run", "main", deferred=not OF_RANKS.isdisjoint(os.environ))


sgp_replay = partial(start, "sgp-replay", "replay")
sgp_report = partial(start, "sgp-report", "report")
sgp_sync = partial(start, "sgp-sync", "sync")
