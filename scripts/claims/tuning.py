"""Tuning: settings chosen for each algorithm by the same small search on held-out samples.

It uses neither the samples nor the seeds for which results are reported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from sgp_runner.session.job_pool import Job

HOLDOUT = 0.2
SEEDS = (101, 102)
DIVERGED = 0.0  # the score of a diverged run


def quality(job: Job, metric: str) -> float:
    """A metric of a finished run's summary, larger is better; 0 for a run that diverged."""
    if job.diverged:
        return DIVERGED
    assert job.summary is not None, job.name
    value = job.summary[metric]
    assert isinstance(value, int | float)
    return float(value)


@dataclass(frozen=True)
class Search:
    """A search of the best of ``values`` for ``key``, each with the same seeds.

    The best mean of ``metric`` wins; of equal ones, the smaller value.
    name: the beginning of run names. words: all other settings. metric: key of the summary; larger
    is better. after: the search that chooses another setting first.
    """

    name: str
    words: tuple[str, ...]
    results: Path
    values: tuple[float, ...]
    key: str = "optim.lr"
    seeds: tuple[int, ...] = SEEDS
    metric: str = "worker_mean"
    after: Search | None = None

    def job(self, value: float, seed: int) -> Job:
        fixed = (*self.words, *(self.after.chosen if self.after else ()))
        short = self.key.rpartition(".")[2]
        words = (*fixed, f"{self.key}={value:g}", f"data.holdout={HOLDOUT:g}", f"seed={seed}")
        return Job(f"tune-{self.name}-{short}{value:g}-s{seed}", words, self.results)

    @property
    def parts(self) -> tuple[Search, ...]:
        """The searches to make, in order: this one comes after its `after`."""
        return (self,) if self.after is None else (*self.after.parts, self)

    @property
    def jobs(self) -> list[Job]:
        """The runs; none while the search before it has not finished."""
        if self.after is not None and not self.after.finished:
            return []
        return [self.job(value, seed) for value, seed in product(self.values, self.seeds)]

    @property
    def finished(self) -> bool:
        return bool(self.jobs) and all(job.finished for job in self.jobs)

    @property
    def due(self) -> bool:
        """Whether this search, or the one before it, has runs to make."""
        return (self.after is not None and self.after.due) or any(job.due for job in self.jobs)

    def score(self, value: float) -> float:
        """The mean metric of ``value``; like the properties below, for finished searches only."""
        return sum(quality(self.job(value, seed), self.metric) for seed in self.seeds) / len(
            self.seeds
        )

    @property
    def best(self) -> float:
        return best_of(self)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The chosen settings."""
        return (*(self.after.chosen if self.after else ()), f"{self.key}={self.best:g}")

    @property
    def at_the_edge(self) -> bool:
        """Whether a value beyond those tried might be better still."""
        return self.best in (min(self.values), max(self.values))


@dataclass(frozen=True)
class Joint:
    """A search of two settings: ``search`` with each of ``values`` for ``key``; the best wins."""

    search: Search
    key: str
    values: tuple[float, ...]

    @property
    def parts(self) -> tuple[Search, ...]:
        short = self.key.rpartition(".")[2]
        name, words = self.search.name, self.search.words
        return tuple(
            replace(
                self.search,
                name=f"{name}-{short}{value:g}",
                words=(*words, f"{self.key}={value:g}"),
            )
            for value in self.values
        )

    @property
    def finished(self) -> bool:
        return all(part.finished for part in self.parts)

    @property
    def chosen(self) -> tuple[str, ...]:
        value, best = max(
            zip(self.values, self.parts, strict=True), key=lambda pair: pair[1].score(pair[1].best)
        )
        return (f"{self.key}={value:g}", *best.chosen)


@functools.cache  # called for hundreds of runs, and each call reads ten summaries
def best_of(search: Search) -> float:
    return max(sorted(search.values), key=search.score)


def remaining(searches: Sequence[Search]) -> Iterator[list[Job]]:
    """The runs that are due, in rounds: those of dependent searches follow the searches before.

    Ends when a round has no new runs.
    """
    tried: set[str] = set()
    while jobs := [
        job
        for search in ready(searches)
        for job in search.jobs
        if job.due and job.name not in tried
    ]:
        tried |= {job.name for job in jobs}
        yield jobs
        best_of.cache_clear()


def ready(searches: Sequence[Search]) -> Iterator[Search]:
    """The searches that do not wait for another one."""
    return (search for search in searches if search.after is None or not search.after.due)
