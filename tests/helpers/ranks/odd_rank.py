"""One rank of a real run of which rank 1 differs from the others: ``odd_rank.py WHAT config.yaml``;
the rank is in the environment.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from sgp_runner.assembly.start import execute
from sgp_runner.config.experiment import load_experiment
from sgp_runner.models.mlp import MLP
from sgp_runner.utils import provenance as environment
from sgp_runner.utils.errors import Aborted, RankFailed

experiment = load_experiment(Path(sys.argv[2]), None)
if os.environ["RANK"] == "1":
    match sys.argv[1]:
        case "configuration":
            experiment = replace(experiment, config={**experiment.config, "epochs": 2})
        case "code version":
            environment.__version__ = "0.0.0"
        case "initial parameters":
            experiment = replace(experiment, run=replace(experiment.run, model=MLP(hidden=(3,))))
try:
    execute(experiment)
except (RankFailed, Aborted):
    os._exit(1)
