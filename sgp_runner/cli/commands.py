"""The console scripts.

Each hears signals before it imports anything else. No Python that it starts imports from the
present folder.
"""

import os
from typing import NoReturn

from sgp_runner.utils.signals import end, install
from sgp_runner.utils.variables import SAFE_PATH

# A process with one of these variables may be one of several ranks (`sgp_runner.utils.launchers`).
OF_RANKS = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID"}


def begin(command: str, deferred: bool = False) -> None:
    install(command, deferred)
    os.environ.update(SAFE_PATH)


def sgp_run() -> NoReturn:
    begin("sgp-run", deferred=not OF_RANKS.isdisjoint(os.environ))
    from sgp_runner.cli.main import main

    end(main())


def sgp_replay() -> NoReturn:
    begin("sgp-replay")
    from sgp_runner.cli.replay import main

    end(main())


def sgp_report() -> NoReturn:
    begin("sgp-report")
    from sgp_runner.cli.report import main

    end(main())


def sgp_sync() -> NoReturn:
    begin("sgp-sync")
    from sgp_runner.cli.sync import main

    end(main())
