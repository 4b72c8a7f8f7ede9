"""Program of one rank: ``python -m sgp_runner.assembly.rank_process config.yaml [GROUP]``.

Options ``--plugin=...`` specify the plug-ins of the run. A launcher sets the environment variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from sgp_runner.config.experiment import Experiment
from sgp_runner.utils.messages import logger, show_messages
from sgp_runner.utils.signals import SAVED, end_at_once, install_in_rank


def run(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Call ``main`` with the arguments of this process, and exit with its result."""
    install_in_rank()
    show_messages()
    end_at_once(main(sys.argv[1:]))


def main(
    arguments: Sequence[str],
    adapt: Callable[[Experiment], Experiment] = lambda experiment: experiment,
) -> int:
    """Run one rank of an experiment; the launching process reports errors of the rank.

    adapt: maps the experiment in the file to the experiment to run
    """
    import time
    from contextlib import ExitStack
    from dataclasses import replace
    from pathlib import Path

    from sgp_runner.assembly.execution import print_traceback_if_wanted
    from sgp_runner.assembly.real.launch import STARTED
    from sgp_runner.assembly.real.program_objects import read_objects
    from sgp_runner.assembly.start import execute
    from sgp_runner.config.experiment import load_experiment
    from sgp_runner.config.plugins.loading import without_options
    from sgp_runner.recording.recorder import write_summary
    from sgp_runner.utils.errors import (
        Aborted,
        ConfigError,
        Diverged,
        Evicted,
        RankFailed,
        Stopped,
    )

    try:
        config, *group = without_options(arguments)
        read_objects()
        experiment = load_experiment(Path(config), group[0] if group else None)
    except ConfigError as error:  # a plug-in has changed since the launch
        if os.environ.get("RANK") == "0":
            logger.error(str(error))
        return 1
    experiment = replace(
        adapt(experiment), started=float(os.environ.get(STARTED, time.monotonic()))
    )
    try:
        with ExitStack() as exit_stack:
            summary = execute(experiment, exit_stack)
            if summary is not None:
                write_summary(experiment.directory, summary)
    except RankFailed as error:
        print_traceback_if_wanted(error)
        return 1
    except (Aborted, ConfigError, Diverged, Evicted):
        return 1
    except Stopped:
        return SAVED
    return 0


if __name__ == "__main__":
    run(main)
