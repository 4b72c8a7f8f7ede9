"""One rank of instrumented real runs whose messages move in pairs, as over NCCL: ``paired_rank.py
config.yaml ...``.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # of tests/, for helpers
from helpers.experiments import instrumented

from sgp_runner.assembly.start import run_rank
from sgp_runner.config.experiment import load_experiment
from sgp_runner.distributed.torch_world import TorchWorld
from sgp_runner.recording.recorder import write_summary
from sgp_runner.utils.messages import show_messages

show_messages()
for config_file in sys.argv[1:]:
    experiment = instrumented(load_experiment(Path(config_file), None))
    world = TorchWorld(experiment.run.gpus_per_node, paired=True)
    with ExitStack() as exit_stack:
        summary = run_rank(experiment, world, exit_stack)
        if summary is not None:
            write_summary(experiment.directory, summary)
os._exit(0)
