#!/usr/bin/env python
"""Tests of the papers' conclusions: ``make claims`` makes missing runs and writes the pages.

The pages are ``results/reproduced/claims.md`` and ``.html``. The script first unpacks archived
runs, and at the end archives all runs.

    scripts/claims.py [NUMBER ...]     make only the runs of these claims; the pages show all
                                       finished claims
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

from claims import (
    asynchronous,
    averaging,
    gossip,
    heterogeneity,
    local_steps,
    pipeline,
    slow_momentum,
    speedup,
    timing,
    warmup,
)
from claims.evidence import Claim
from claims.page import write
from claims.tuning import remaining
from reproduce.archives import pack, unpack
from sgp_runner.session.job_pool import run_and_say
from sgp_runner.utils.messages import show_messages
from sgp_runner.utils.units import duration

ROOT = Path(__file__).resolve().parent.parent
OUT = Path("results", "reproduced")  # relative to ROOT


def all_claims() -> Iterator[Claim]:
    every = [
        *averaging.claims(),
        *timing.claims(OUT),
        *gossip.claims(OUT),
        *slow_momentum.claims(OUT),
        *asynchronous.claims(OUT),
        *pipeline.claims(OUT),
        *speedup.claims(OUT),
        *warmup.claims(OUT),
        *local_steps.claims(OUT),
        *heterogeneity.claims(OUT),
    ]
    yield from sorted(every, key=lambda claim: claim.number)


def main(words: Sequence[str]) -> int:
    os.chdir(ROOT)
    show_messages()
    unpack(OUT)
    known = {str(claim.number): claim for claim in all_claims()}
    if unknown := [word for word in words if word not in known]:
        print(
            f"scripts/claims.py: '{unknown[0]}' is not a claim; choose from {', '.join(known)}",
            file=sys.stderr,
        )
        return 2
    claims = [known[word] for word in words or known]
    failed = 0
    for claim in claims:
        began = monotonic()
        failed += sum(map(run_and_say, remaining(claim.searches)))
        failed += run_and_say(claim.jobs)
        print(f"claim {claim.number}: {duration(round(monotonic() - began))}", flush=True)
    for view in write(list(known.values()), OUT):
        print(f"{view.claim.number}. {view.claim.subject}: {view.headline}")
    pack(OUT)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
