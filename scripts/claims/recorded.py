"""Archived runs and searches, found by their settings or names."""

from __future__ import annotations

import csv
import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.studies.arms import merged
from sgp_runner.studies.candidates import Candidate, Trial, Tuned, by_candidate
from sgp_runner.studies.measures import loss
from sgp_runner.studies.study_file import RATE


@functools.cache
def commands(results: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the settings of each archived run, by its name."""
    try:
        with (results / "runs.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        return {}
    return {row["run"]: tuple(shlex.split(row["command"])[1:]) for row in rows}


@functools.cache
def by_settings(results: Path) -> Mapping[frozenset[str], str]:
    """Return the name of an archived run by its settings, in any order.

    Of two runs with the same settings, the first one in the table is returned.
    """
    every = reversed([*commands(results).items()])
    return {frozenset(merged(overrides)): name for name, overrides in every}


def job_of(results: Path, overrides: Iterable[str], name: str) -> RunJob:
    """Return the job with these settings: the archived run, or a new one called ``name``."""
    every = merged(overrides)
    return RunJob(by_settings(results).get(frozenset(every), name), every, results)


def search_of(results: Path, name: str) -> Tuned:
    """Return the archived search ``name``; it chooses the lowest mean loss.

    Other settings than the learning rate are those of the best run at each rate. Of equal losses,
    the smaller rate is chosen.
    """
    pattern = re.compile(rf"tune-{re.escape(name)}(?:-(beta)([\d.e-]+))?-lr([\d.e-]+)-s(\d+)")
    losses: dict[Trial, float] = {}
    for run in commands(results):
        if match := pattern.fullmatch(run):
            key, other, rate, seed = match.groups()
            others = (f"algo.{key}={other}",) if key else ()
            trial = Trial(Candidate(float(rate), others), int(seed))
            losses[trial] = loss(RunJob(run, (), results))
    scores = {
        candidate: sum(sample) / len(sample) for candidate, sample in by_candidate(losses).items()
    }
    chosen = min(scores, key=lambda candidate: (scores[candidate], candidate.value))
    ends = [f(candidate.value or 0.0 for candidate in scores) for f in (min, max)]
    return Tuned(chosen, losses, (RATE,) if chosen.value in ends else ())
