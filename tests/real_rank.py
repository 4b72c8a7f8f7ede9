"""One rank of instrumented real runs, in turn: ``real_rank.py FAIL_ON_RANK config.yaml ...``; the rank is in the environment."""

from __future__ import annotations

import os
import sys

from experiments import experiment_of, instrumented
from omegaconf import DictConfig, OmegaConf

from sgp_runner.errors import Aborted, RankFailed
from sgp_runner.rank import run_rank
from sgp_runner.recorder import write_summary

code = 0
for config_file in sys.argv[2:]:
    config = OmegaConf.load(config_file)
    assert isinstance(config, DictConfig)
    experiment = experiment_of(config)
    try:
        summary = run_rank(instrumented(experiment, int(sys.argv[1])))
    except (RankFailed, Aborted) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        code = 1
        break
    if summary is not None:
        write_summary(experiment.directory, summary)
os._exit(code)
