"""Tuning: settings chosen for each algorithm by the same search, with the optimum inside the grid.

It uses neither the seeds for which results are reported nor, where data can be held out, their
samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from sgp_runner.session.job_pool import RunJob

HOLDOUT = 0.2
SEEDS = (101, 102)


def loss(job: RunJob, diverged: float = inf) -> float:
    """Return the validation loss of the averaged model; ``diverged`` if the run diverged."""
    return diverged if job.diverged else number(job, "average_loss")


def number(job: RunJob, key: str) -> float:
    """Return a number of a finished run's summary."""
    assert job.summary is not None, job.name
    value = job.summary[key]
    assert isinstance(value, int | float)
    return float(value)


def doublings(middle: float, times: int = 10) -> tuple[float, ...]:
    """Return ``middle`` and its doublings and halvings, ``times`` of each."""
    return tuple(middle * 2.0**power for power in range(-times, times + 1))


def climb(
    first: Sequence[float],
    ladder: Sequence[float],
    finished: Callable[[float], bool],
    score: Callable[[float], float],
) -> tuple[float, ...]:
    """Return the values to try: ``first``, and more as long as the best one is at the edge.

    The values are neighbours on ``ladder``, which increases. The lowest score is best; ties go to
    the smaller value.
    """
    tried = sorted(first)
    while all(map(finished, tried)):
        place = ladder.index(min(tried, key=score))
        more = {ladder[max(0, place - 1)], *ladder[place + 1 : place + 2]} - set(tried)
        if not more:
            break
        tried = sorted([*tried, *more])
    return tuple(tried)


@dataclass(frozen=True)
class Search:
    """A search of the best value for ``key``, each with the same seeds.

    The lowest mean validation loss wins; ties go to the smaller value.
    name: the beginning of run names. words: all other settings. first: the values that are tried
    first. ladder: all that may be tried, increasing.
    """

    name: str
    words: tuple[str, ...]
    results: Path
    first: tuple[float, ...]
    ladder: tuple[float, ...]
    key: str = "optim.lr"
    seeds: tuple[int, ...] = SEEDS

    def job(self, value: float, seed: int) -> RunJob:
        short = self.key.rpartition(".")[2]
        words = (*self.words, f"{self.key}={value:g}", f"seed={seed}")
        return RunJob(f"tune-{self.name}-{short}{value:g}-s{seed}", words, self.results)

    def jobs_of(self, value: float) -> list[RunJob]:
        return [self.job(value, seed) for seed in self.seeds]

    def has(self, value: float) -> bool:
        return all(job.finished for job in self.jobs_of(value))

    def score(self, value: float) -> float:
        """Return the mean loss of a finished value; infinite if a run diverged."""
        return sum(map(loss, self.jobs_of(value))) / len(self.seeds)

    @property
    def tried(self) -> tuple[float, ...]:
        """The values that have been tried, or are to be tried next."""
        return climb(self.first, self.ladder, self.has, self.score)

    @property
    def jobs(self) -> list[RunJob]:
        """The runs that are known to be needed."""
        return [job for value in self.tried for job in self.jobs_of(value)]

    @property
    def finished(self) -> bool:
        return all(map(self.has, self.tried))

    @property
    def best(self) -> float:
        """The chosen value; like the properties below, for finished searches only."""
        return min(self.tried, key=self.score)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The chosen settings."""
        return chosen_by(self)

    @property
    def at_the_edge(self) -> bool:
        """Whether the best value is an end of the ladder, so that a value beyond may be better."""
        return self.best in (self.ladder[0], self.ladder[-1])

    @property
    def parts(self) -> tuple[Search, ...]:
        return (self,)


@dataclass(frozen=True)
class Joint:
    """A search of two settings: ``search`` with each value for ``key``; the best pair wins."""

    search: Search
    key: str
    first: tuple[float, ...]
    ladder: tuple[float, ...]

    @property
    def name(self) -> str:
        return self.search.name

    def part(self, value: float) -> Search:
        name, setting = self.search.name, f"{self.key}={value:g}"
        short = self.key.rpartition(".")[2]
        words = (*self.search.words, setting)
        return replace(self.search, name=f"{name}-{short}{value:g}", words=words)

    def score(self, value: float) -> float:
        part = self.part(value)
        return part.score(part.best)

    @property
    def tried(self) -> tuple[float, ...]:
        return climb(self.first, self.ladder, lambda value: self.part(value).finished, self.score)

    @property
    def parts(self) -> tuple[Search, ...]:
        return tuple(map(self.part, self.tried))

    @property
    def jobs(self) -> list[RunJob]:
        return [job for part in self.parts for job in part.jobs]

    @property
    def finished(self) -> bool:
        return all(part.finished for part in self.parts)

    @property
    def best(self) -> float:
        """The chosen value for ``key``; like the property below, for finished searches only."""
        return min(self.tried, key=self.score)

    @property
    def at_the_edge(self) -> bool:
        return self.best in (self.ladder[0], self.ladder[-1])

    @property
    def chosen(self) -> tuple[str, ...]:
        return chosen_by(self)


@functools.cache  # called for hundreds of runs, and each call reads ten summaries
def chosen_by(search: Search | Joint) -> tuple[str, ...]:
    best = search.best
    first = search.part(best).chosen if isinstance(search, Joint) else ()
    return (f"{search.key}={best:g}", *first)


def remaining(searches: Sequence[Search | Joint]) -> Iterator[list[RunJob]]:
    """Yield the runs that are due, in rounds, as grids grow. Ends when a round has no new runs."""
    tried: set[str] = set()
    while jobs := [
        job for search in searches for job in search.jobs if job.due and job.name not in tried
    ]:
        tried |= {job.name for job in jobs}
        yield jobs
        chosen_by.cache_clear()
