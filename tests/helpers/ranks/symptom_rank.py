"""One rank of a measurement of a second or two for doctor: ``symptom_rank.py config.yaml``."""

from __future__ import annotations

import os
import sys
from functools import partial

from sgp_runner.assembly import rank_process
from sgp_runner.calibration.symptoms import diagnosing

if __name__ == "__main__":
    code = rank_process.main(sys.argv[1:], partial(diagnosing, seconds=0.05))
    sys.stdout.flush()
    os._exit(code)
