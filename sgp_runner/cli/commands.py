"""The console scripts. Each hears signals before it imports anything else."""

from typing import NoReturn

from sgp_runner.utils.signals import end, hear


def sgp_run() -> NoReturn:
    hear("sgp-run")
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
