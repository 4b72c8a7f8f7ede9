"""Tasks and runs shared by the claims about quality: two generated tasks, and algorithms on them.

The primary measure is the validation loss of the averaged model on 10,000 samples or more. For any
number of nodes, an update of all nodes uses the same number of samples, so that runs differ only in
the averaging. Times are simulated for ResNet-50 on the SGP paper's Ethernet cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean

from claims.evidence import Finding, Sample
from claims.tuning import Joint, Search
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.session.job_pool import RunJob
from sgp_runner.studies.measures import loss, number
from sgp_runner.studies.statistics import Between, alike, exactly, mean_of
from sgp_runner.studies.study_tasks import StudyTask
from sgp_runner.studies.tuning import doublings

ALGORITHMS = {
    "ar_sgd": "AR-SGD",
    "sgp": "SGP",
    "osgp": "1-OSGP",
    "d_psgd": "D-PSGD",
    "ad_psgd": "AD-PSGD",
    "local_sgd": "local SGD",
}
UNIT = "validation loss, nats"
SIZE = "data.train_size="
BETAS = (0.3, 0.5, 0.7)  # values of the slow momentum that are tried first
MORE_BETAS = (0.02, 0.05, 0.1, *BETAS, 0.8, 0.9)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a run for each seed, with the settings that the search has found.

    name: the names of the runs without the seed.
    """

    task: StudyTask
    name: str
    words: tuple[str, ...]
    search: Search | Joint
    results: Path
    seeds: tuple[int, ...]

    def job(self, seed: int) -> RunJob:
        words = (*self.words, *self.search.chosen, f"seed={seed}")
        return RunJob(f"{self.name}-s{seed}", words, self.results)

    @property
    def jobs(self) -> tuple[RunJob, ...]:
        return tuple(map(self.job, self.seeds))

    def lengthened(self, times: int, seeds: Sequence[int]) -> Side:
        """Return runs with ``times`` as much data and as many steps, without another search."""
        task = replace(self.task, name=f"{self.task.name}{times}x")
        words = tuple(
            f"{SIZE}{times * int(word.removeprefix(SIZE))}" if word.startswith(SIZE) else word
            for word in self.words
        )
        name = task.name + self.name.removeprefix(self.task.name)
        return replace(self, task=task, name=name, words=words, seeds=tuple(seeds))

    @property
    def losses(self) -> list[float]:
        """The validation loss in nats, for each seed."""
        return [loss(job, diverged=self.task.guess) for job in self.jobs]


def side(
    results: Path,
    task: StudyTask,
    algo: str,
    label: str = "",
    words: Iterable[str] = (),
    *,
    seeds: Sequence[int],
    nodes: int = 32,
    times: int = 1,
    slow: bool = False,
    like: Search | Joint | None = None,
) -> Side:
    """Return the runs of ``algo`` with additional settings ``words``; ``label`` names them.

    The learning rate is searched for exactly these settings. times: factor on the number of epochs.
    slow: whether the slow momentum is searched too. like: the search of another side, which chooses
    the settings if the sides differ only in settings that are not tuned.
    """
    longer = (f"x{times}",) if times > 1 else ()
    name = "-".join([task.name, label or algo, f"n{nodes}", *longer])
    every = (*task.settings(algo, nodes, times), *words)
    rate = Search(name, (*every, *task.tuning), results, task.rates, doublings(task.rates[0]))
    one = replace(rate, seeds=rate.seeds[:1])  # one seed, because all pairs of values are tried
    own = Joint(one, "algo.beta", BETAS, MORE_BETAS) if slow else rate
    return Side(task, name, every, like or own, results, tuple(seeds))


def compare(
    part: str, what: str, ours: Side, theirs: Side, expected: Between, *, primary: bool = False
) -> Finding:
    """Return the paired difference in validation loss, ``ours`` minus ``theirs``."""
    return found(part, what, [(ours, theirs)], expected, primary)


def extra(
    part: str,
    what: str,
    effect: tuple[Side, Side],
    other: tuple[Side, Side],
    expected: Between,
    *,
    primary: bool = False,
) -> Finding:
    """Return the amount by which one difference in loss exceeds another, paired by seed."""
    return found(part, what, [effect, other], expected, primary)


Pairs = Sequence[tuple[Side, Side]]


def found(part: str, what: str, pairs: Pairs, expected: Between, primary: bool) -> Finding:
    task = pairs[0][0].task
    jobs = dict.fromkeys(job for pair in pairs for each in pair for job in each.jobs)
    return Finding(
        part,
        f"{task.name}: {what}",
        UNIT,
        mean_of(differences(pairs, partial(loss, diverged=task.guess))),
        expected,
        tuple(jobs),
        beside="" if any(job.diverged for job in jobs) else beside(pairs, task),
        primary=primary,
    )


def differences(pairs: Pairs, measure: Callable[[RunJob], float]) -> list[float]:
    """Return the difference within the first pair of sides, by seed.

    If there is a second pair, its difference is subtracted.
    """
    first, *others = (
        [measure(a) - measure(b) for a, b in zip(ours.jobs, theirs.jobs, strict=True)]
        for ours, theirs in pairs
    )
    return [one - sum(rest) for one, *rest in zip(first, *others, strict=True)]


def beside(pairs: Pairs, task: StudyTask) -> str:
    """Return a text about the differences in other measures.

    These are the accuracy and, if samples repeat, the training loss.
    """
    words = []
    if task.accuracy:
        points = mean_of(differences(pairs, lambda job: 100 * number(job, "average")))
        words += [f"accuracy {points.mean:+.2f} points ({points.low:+.2f} to {points.high:+.2f})"]
    if task.epochs > 1:
        nats = mean_of(differences(pairs, training_loss))
        words += [f"training loss {nats.mean:+.3f} ({nats.low:+.3f} to {nats.high:+.3f})"]
    return "; ".join(words)


def training_loss(job: RunJob) -> float:
    """Return the mean loss of the workers' last batches in nats, each before the step."""
    records = (record for record in read_metrics(job.folder) if record["kind"] == "train")
    return fmean({record["rank"]: record["loss"] for record in records}.values())


def time_ratio(part: str, what: str, ours: Side, theirs: Side, expected: Between) -> Finding:
    """Return the ratio of simulated times."""
    return ratio(part, what, ours, theirs, expected, "time_s", "ratio of simulated times")


def ratio(
    part: str, what: str, ours: Side, theirs: Side, expected: Between, key: str, unit: str
) -> Finding:
    """Return the ratio of the number ``key`` in the summaries.

    The ratio is exact if it is the same for all seeds.
    """
    ratios = [number(a, key) / number(b, key) for a, b in zip(ours.jobs, theirs.jobs, strict=True)]
    return Finding(
        part,
        f"{ours.task.name}: {what}",
        unit,
        exactly(sum(ratios) / len(ratios)) if alike(ratios) else mean_of(ratios),
        expected,
        (*ours.jobs, *theirs.jobs),
    )


def all_jobs(sides: Iterable[Side]) -> tuple[RunJob, ...]:
    """Return the runs of all sides, seed by seed.

    An interrupted command therefore leaves complete comparisons.
    """
    return tuple(chain.from_iterable(zip(*(each.jobs for each in sides), strict=True)))


def searches(sides: Iterable[Side]) -> tuple[Search | Joint, ...]:
    """Return the searches of all sides, without repetition."""
    return tuple(dict.fromkeys(each.search for each in sides))


def sample(sides: Sequence[Side], find: Callable[[], Iterable[Finding]]) -> Sample:
    """Return a sample: the runs of some sides, with their searches and findings."""
    return Sample(lambda: all_jobs(sides), lambda: list(find()), searches(sides))


def one_comparison(part: str, what: str, ours: Side, theirs: Side, expected: Between) -> Sample:
    """Return a sample of two sides; their difference is the only finding."""
    return sample(
        (ours, theirs), lambda: [compare(part, what, ours, theirs, expected, primary=True)]
    )
