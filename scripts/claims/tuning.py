"""Tuning: one search procedure for all algorithms, with the optimum inside the searched range.

Searches use other seeds than the reported runs. If data can be held out, searches also use other
samples than the reported validation losses.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sgp_runner.session.job_pool import RunJob
from sgp_runner.studies.measures import loss
from sgp_runner.studies.tuning import climb

SEEDS = (101, 102)


@dataclass(frozen=True)
class Search:
    """A search for the best value of ``key``; all values are tried with the same seeds.

    The value with the lowest mean validation loss is best; of equal losses, the smaller value is
    best. name: the beginning of the names of runs. words: all other settings. first: the first
    values to try. ladder: all values that may be tried, increasing.
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
        """Return the mean loss of a value whose runs have finished; infinite if a run diverged."""
        return sum(map(loss, self.jobs_of(value))) / len(self.seeds)

    @property
    def tried(self) -> tuple[float, ...]:
        """The values that have been tried, and the values to try next."""
        return climb(self.first, self.ladder, self.has, self.score)

    @property
    def jobs(self) -> list[RunJob]:
        """The runs that are known to be needed so far."""
        return [job for value in self.tried for job in self.jobs_of(value)]

    @property
    def finished(self) -> bool:
        return all(map(self.has, self.tried))

    @property
    def best(self) -> float:
        """The best value; it and the properties below need a finished search."""
        return min(self.tried, key=self.score)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The settings with the best value."""
        return chosen_by(self)

    @property
    def at_the_edge(self) -> bool:
        """Whether the best value is at an end of the ladder; a value beyond it may be better."""
        return self.best in (self.ladder[0], self.ladder[-1])

    @property
    def parts(self) -> tuple[Search, ...]:
        return (self,)


@dataclass(frozen=True)
class Joint:
    """A search of two settings: ``search`` for each value of ``key``; the best pair wins."""

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
        """The best value of ``key``; it and the properties below need a finished search."""
        return min(self.tried, key=self.score)

    @property
    def at_the_edge(self) -> bool:
        return self.best in (self.ladder[0], self.ladder[-1])

    @property
    def chosen(self) -> tuple[str, ...]:
        return chosen_by(self)


@functools.cache  # there are hundreds of calls, and each would read ten summaries
def chosen_by(search: Search | Joint) -> tuple[str, ...]:
    best = search.best
    first = search.part(best).chosen if isinstance(search, Joint) else ()
    return (f"{search.key}={best:g}", *first)


def remaining(searches: Sequence[Search | Joint]) -> Iterator[list[RunJob]]:
    """Yield rounds of runs that are due.

    Finished runs can extend a search, which then needs further runs. The rounds end when no new
    runs are needed.
    """
    tried: set[str] = set()
    while jobs := [
        job for search in searches for job in search.jobs if job.due and job.name not in tried
    ]:
        tried |= {job.name for job in jobs}
        yield jobs
        chosen_by.cache_clear()
