"""The program of one rank: ``python -m sgp_runner.calibration.rank_process config.yaml``."""

from __future__ import annotations

import os
import sys

from sgp_runner.utils.signals import defer, hear

if __name__ == "__main__":
    hear("")
    defer(speaks=True)  # under no name: the launching process reports
    from sgp_runner.calibration.rank import main

    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still wait for messages must not delay the exit
