"""Findings that a function computes, where a claim compares more than the arms of a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from claims.evidence import Finding
from sgp_runner.jobs.job_pool import RunJob


@dataclass(frozen=True)
class Computed:
    """Runs and the findings that they give.

    find: call it only after the runs have finished.
    """

    jobs: Sequence[RunJob] = ()
    find: Callable[[], Sequence[Finding]] = tuple
