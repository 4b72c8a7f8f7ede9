#!/usr/bin/env python
"""Tests of the papers' conclusions: ``make claims`` makes missing runs and writes the pages.

The pages are ``results/claims.md`` and those in ``results/claims``. The script first unpacks
archived runs, and at the end archives all runs.

    scripts/claims.py [NUMBER ...]     make only the runs of these claims; the pages show all
                                       finished claims
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from claims.claim_files import all_claims
from claims.page import write
from reproduce.archives import pack, unpack
from sgp_runner.jobs.job_pool import run_and_say
from sgp_runner.utils.messages import show_messages
from sgp_runner.utils.units import duration

ROOT = Path(__file__).resolve().parent.parent
PAGES = Path("results")  # relative to ROOT
OUT = Path("results", "reproduced")  # the runs


def main(numbers: Sequence[str]) -> int:
    os.chdir(ROOT)
    show_messages()
    unpack(OUT)
    catalogue = {str(claim.number): claim for claim in all_claims(OUT)}
    if unknown := [word for word in numbers if word not in catalogue]:
        print(
            f"scripts/claims.py: '{unknown[0]}' is not a claim; choose from {', '.join(catalogue)}",
            file=sys.stderr,
        )
        return 2
    failed = 0
    for word in numbers or catalogue:
        began = monotonic()
        failed += run_and_say(catalogue[word].jobs)
        print(f"claim {word}: {duration(round(monotonic() - began))}", flush=True)
    for view in write(list(catalogue.values()), OUT, PAGES):
        print(f"{view.claim.number}. {view.texts['subject']}: {view.together}")
    pack(OUT)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
