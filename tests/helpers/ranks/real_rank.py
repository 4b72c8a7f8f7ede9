"""One rank of instrumented real runs, in turn: ``real_rank.py FAIL_ON_RANK config.yaml ...``; the
rank is in the environment.

``2`` fails, ``2dies`` is killed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of tests/, for helpers
from helpers.experiments import instrumented

from sgp_runner.assembly.start import execute
from sgp_runner.config.experiment import load_experiment
from sgp_runner.recording.recorder import write_summary
from sgp_runner.utils.errors import Aborted, Diverged, Evicted, RankFailed, Stopped
from sgp_runner.utils.messages import show_messages
from sgp_runner.utils.signals import SAVED


def main() -> int:
    for config_file in sys.argv[2:]:
        experiment = load_experiment(Path(config_file), None)
        try:
            rank = sys.argv[1].removesuffix("dies")
            summary = execute(instrumented(experiment, int(rank), rank != sys.argv[1]))
        except (RankFailed, Aborted, Diverged, Evicted) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            return 1
        except Stopped:
            return SAVED
        if summary is not None:
            write_summary(experiment.directory, summary)
    return 0


if __name__ == "__main__":  # processes that decode images import this file
    show_messages()
    code = main()
    sys.stdout.flush()
    if code or "OMPI_COMM_WORLD_RANK" not in os.environ:  # MPI wants to be told of a good end
        os._exit(code)
