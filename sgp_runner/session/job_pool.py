"""Many runs, several at a time, each finished one only once: for tables and claims that rest on
hundreds of small runs.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sgp_runner.config.corrections import Correction, since
from sgp_runner.config.schema import FORMAT
from sgp_runner.recording.divergence import FILE as DIVERGED
from sgp_runner.recording.recorder import read_summary

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Job:
    """One run: its folder in ``results``/runs and its settings, as typed."""

    name: str
    words: tuple[str, ...]
    results: Path

    @property
    def folder(self) -> Path:
        return self.results / "runs" / self.name

    @property
    def command(self) -> str:
        """What repeats it."""
        return " ".join(["sgp-run", *self.words])

    @property
    def summary(self) -> Mapping[str, object] | None:
        return read_summary(self.folder)

    @property
    def diverged(self) -> bool:
        """Training has failed for good, which is a result too."""
        return (self.folder / DIVERGED).exists()

    @property
    def finished(self) -> bool:
        """It has results, of this or an earlier version."""
        return self.summary is not None or self.diverged

    @property
    def config(self) -> Mapping[str, Any] | None:
        """Its stored configuration, if it has begun."""
        import yaml

        try:
            text = (self.folder / "config.yaml").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        # The loader in C is ten times as fast, where there is one.
        config: Mapping[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return config

    @property
    def since(self) -> list[Correction]:
        """The corrections that its results do not have."""
        config = self.config
        return [] if config is None or config.get("format") != FORMAT else since(config)

    @property
    def replaces(self) -> bool:
        """Whether its folder holds results from before a correction, or of a version of sgp-run
        with another format.
        """
        config = self.config
        return config is not None and (config.get("format") != FORMAT or bool(since(config)))

    @property
    def due(self) -> bool:
        """It has no results, or they are to be replaced."""
        return not self.finished or self.replaces


def outdated(jobs: Iterable[Job]) -> str:
    """A sentence that says how many of these jobs have results from before which corrections; empty
    if none has.
    """
    since = [job.since for job in jobs if job.finished]
    counts = Counter(correction.what for each in since for correction in each)
    if not counts:
        return ""
    parts = [f"{count} of {len(since)} runs ({what})" for what, count in counts.items()]
    return f"From before a correction: {'; '.join(parts)}."


def run_all(jobs: Iterable[Job], processes: int | None = None) -> Iterator[tuple[Job, str | None]]:
    """Each job as it ends, with a sentence if it failed. ``processes`` run at a time, with one
    thread each; None: one for each core.

    Jobs that have finished before, or diverged, are not among them, unless their results are from
    before a correction.
    """
    waiting = [job for job in jobs if job.due]
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes, which read it when they import torch
    try:
        with ProcessPoolExecutor(
            processes or os.cpu_count(), mp_context=get_context("spawn")
        ) as pool:
            running = {pool.submit(run, job): job for job in waiting}
            for future in as_completed(running):
                yield running[future], future.result()
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def run_and_say(jobs: Iterable[Job]) -> int:
    """`run_all`, each job once, with a line as it ends; how many have failed."""
    failed = 0
    for job, error in run_all({job.name: job for job in jobs}.values()):
        print(f"{job.name}: {error or 'done'}", flush=True)
        failed += error is not None
    return failed


def run(job: Job) -> str | None:
    """Execute it in this process, in silence; the sentence of its error, if it failed."""
    import sys

    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.session.execution import perform, sentence_of

    words = [
        *job.words,
        f"name={job.name}",
        f"results={job.results}",
        "logger=jsonl",
        *(["resume=never"] if job.replaces else []),
    ]
    sys.argv = job.command.split()  # what environment.json will say
    try:
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            perform(experiment_of(words))
    except Exception as error:  # the others go on
        return sentence_of(error)
    return None
