#!/usr/bin/env python
"""The papers' tables, as far as one machine can: ``make reproduce`` fills ``results/reproduced/``
and writes ``results/README.md``.

Finished runs are not repeated, so run an interrupted call again to resume it. Archived runs are
unpacked first, and all runs archived at the end.

    scripts/reproduce.py [timing | rehearsal] ...     only these parts; the tables are made of
    whatever has finished
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from reproduce.archives import pack, unpack
from reproduce.tables import OUT, PARTS, ROOT, jobs, write_tables
from sgp_runner.session.job_pool import run_and_say


def main(parts: Sequence[str]) -> int:
    parts = parts or PARTS
    if unknown := sorted(set(parts) - set(PARTS)):
        print(
            f"scripts/reproduce.py: '{unknown[0]}' is neither timing nor rehearsal", file=sys.stderr
        )
        return 2
    os.chdir(ROOT)
    unpack(OUT)
    failed = run_and_say(jobs(parts))
    write_tables()
    pack(OUT)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
