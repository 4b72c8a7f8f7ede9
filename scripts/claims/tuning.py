"""Settings that the papers tune, chosen once for each algorithm by the same small search, on
samples held out of the training set.

The samples that results are reported on are not looked at, nor are the seeds used that they are
reported for.
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
DIVERGED = 0.0  # the score of a run that has


def quality(job: Job, metric: str) -> float:
    """A number of the summary of a finished run that is better the larger it is; 0 for a run that
    diverged.
    """
    if job.diverged:
        return DIVERGED
    assert job.summary is not None, job.name
    value = job.summary[metric]
    assert isinstance(value, int | float)
    return float(value)


@dataclass(frozen=True)
class Search:
    """Every one of ``values`` for ``key``, each with the same seeds; the best mean of ``metric``
    wins, of equal ones the smaller value.

    name: of the runs, and of what is tuned. words: all other settings. metric: of the summary;
    larger is better.
    after: the search that chooses another setting first.
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
        """In the order in which they are made: this one, after the one that comes first."""
        return (self,) if self.after is None else (*self.after.parts, self)

    @property
    def jobs(self) -> list[Job]:
        """As far as they are known: those of a second search are not before the first has finished."""
        if self.after is not None and not self.after.finished:
            return []
        return [self.job(value, seed) for value, seed in product(self.values, self.seeds)]

    @property
    def finished(self) -> bool:
        return bool(self.jobs) and all(job.finished for job in self.jobs)

    @property
    def due(self) -> bool:
        """It, or the search before it, has runs to make."""
        return (self.after is not None and self.after.due) or any(job.due for job in self.jobs)

    def score(self, value: float) -> float:
        """Of a finished search, as what follows."""
        return sum(quality(self.job(value, seed), self.metric) for seed in self.seeds) / len(
            self.seeds
        )

    @property
    def best(self) -> float:
        return best_of(self)

    @property
    def chosen(self) -> tuple[str, ...]:
        """What it adds to the settings of a run."""
        return (*(self.after.chosen if self.after else ()), f"{self.key}={self.best:g}")

    @property
    def at_the_edge(self) -> bool:
        """Whether a value beyond those tried might be better still."""
        return self.best in (min(self.values), max(self.values))


@dataclass(frozen=True)
class Joint:
    """Two settings at once: ``search`` with every one of ``values`` for ``key`` besides; the best
    score of all wins.
    """

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


@functools.cache  # hundreds of runs ask, and each answer takes reading ten
def best_of(search: Search) -> float:
    return max(sorted(search.values), key=search.score)


def remaining(searches: Sequence[Search]) -> Iterator[list[Job]]:
    """The runs of all searches that are due, in rounds: the second ones when the first are done.
    Ends when a round brings nothing new.
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
    """Those that do not wait for another one."""
    return (search for search in searches if search.after is None or not search.after.due)
