"""One rank of a calibration of a second or two: ``calibration_rank.py config.yaml``.

With the model's size there are three sizes, which are measured on a slow machine too.
"""

from __future__ import annotations

import os
import sys

from sgp_runner.calibration.probe_process import main

if __name__ == "__main__":
    code = main(sys.argv[1:], sizes=(1024, 65536), coded=(512,), seconds=0.05)
    sys.stdout.flush()
    os._exit(code)
