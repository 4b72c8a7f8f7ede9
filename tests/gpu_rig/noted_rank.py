"""One rank of instrumented real runs over gloo that notes every call that NCCL would get:
``noted_rank.py SEED config.yaml ...``.

Headers of messages arrive late at random. A file ``bug`` beside a configuration names the bug of
its run. The calls are in ``calls.RANK.json``, and the rank of this process is in the environment.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests/
import torch.distributed as dist
from gpu_rig import noted_group
from gpu_rig.seeded_bugs import BUGS
from helpers.experiments import instrumented

from sgp_runner.assembly.networks import cut_of, leader_mode
from sgp_runner.assembly.start import run_rank
from sgp_runner.config.experiment import load_experiment
from sgp_runner.distributed.torch_world import TorchWorld
from sgp_runner.recording.recorder import write_summary
from sgp_runner.utils.messages import show_messages

LATE_SECONDS = 0.004  # at most; as long as a gradient takes
seed, *config_files = sys.argv[1:]
rank = os.environ["RANK"]
chance = random.Random(f"{seed} {rank}")
receive = dist.recv


def receive_late(*arguments: Any, **options: Any) -> int:
    """Receive a header on the thread that waits for them, and hold it back."""
    source: int = receive(*arguments, **options)
    time.sleep(chance.uniform(0, LATE_SECONDS))
    return source


def main(config_file: Path) -> None:
    experiment = instrumented(load_experiment(config_file, None))
    run = experiment.run
    world = TorchWorld(
        run.gpus_per_node,
        leader_mode(run, run.network.gossip),
        backend="noted",
        paired=True,
        cut=cut_of(run, run.network.shard),
    )
    with ExitStack() as exit_stack:
        if (bug := config_file.with_name("bug")).exists():
            exit_stack.enter_context(BUGS[bug.read_text()]())
        summary = run_rank(experiment, world, exit_stack)
        if summary is not None:
            write_summary(experiment.directory, summary)
    (experiment.directory / f"calls.{rank}.json").write_text(json.dumps(noted_group.calls))
    noted_group.calls.clear()


show_messages()
warnings.simplefilter("error", FutureWarning)
dist.recv = receive_late
for file in config_files:
    main(Path(file))
os._exit(0)
