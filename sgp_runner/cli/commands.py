"""The console scripts. Each hears signals before it imports anything else."""

import os
from typing import NoReturn

from sgp_runner.utils.signals import end, hear

# A process with one of these variables may be one of several ranks (`sgp_runner.utils.launchers`).
OF_RANKS = {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID"}


def sgp_run() -> NoReturn:
    hear("sgp-run", deferred=not OF_RANKS.isdisjoint(os.environ))
    from sgp_runner.cli.main import main

    end(main())


def sgp_replay() -> NoReturn:
    hear("sgp-replay")
    from sgp_runner.cli.replay import main

    end(main())


def sgp_report() -> NoReturn:
    hear("sgp-report")
    from sgp_runner.cli.report import main

    end(main())


def sgp_sync() -> NoReturn:
    hear("sgp-sync")
    from sgp_runner.cli.sync import main

    end(main())
