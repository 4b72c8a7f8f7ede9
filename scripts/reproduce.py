#!/usr/bin/env python
"""The papers' tables, as far as one machine can reproduce them: ``make reproduce``.

The script writes ``results/reproduced/`` and ``results/README.md``. Run an interrupted command
again to resume it; finished runs are not repeated. The script first unpacks archived runs, and at
the end archives all runs.

    scripts/reproduce.py [timing | rehearsal] ...     make only these runs; the tables show all
                                                      finished runs
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from reproduce.archives import pack, unpack
from reproduce.runs import OUT, PARTS, ROOT, jobs
from reproduce.tables import write_tables
from sgp_runner.jobs.job_pool import run_and_say
from sgp_runner.utils.messages import show_messages


def main(parts: Sequence[str]) -> int:
    parts = parts or PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        print(
            f"scripts/reproduce.py: '{unknown[0]}' is neither timing nor rehearsal", file=sys.stderr
        )
        return 2
    os.chdir(ROOT)
    show_messages()
    unpack(OUT)
    failed = run_and_say(jobs(parts))
    write_tables()
    pack(OUT)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
