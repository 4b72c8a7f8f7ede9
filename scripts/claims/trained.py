"""Tasks and runs that the claims about quality share: four small tasks and algorithms on them.

Nodes keep simulated time of ResNet-50 on the SGP paper's Ethernet cluster. An update of all nodes
has 256 images, 64 with ResNet-8, or 128 sentences, unless a claim is about the number of nodes.
Learning rates are tuned for that size and scale with the images of an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from claims.evidence import Between, Finding, Interval, alike, exactly, paired
from claims.tuning import Joint, Search, quality
from sgp_runner.session.job_pool import Job

SEEDS = (1, 2, 3, 4, 5)
CLOCK = (
    "cluster=sgp_ethernet",
    "timed_as.model=resnet50",
    "timed_as.num_parameters=25557032",
    "timed_as.batch_size=256",
)
IMAGES = ("model=mlp", "optim.lr_reference_batch=256", *CLOCK)
RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
ALGORITHMS = {
    "ar_sgd": "AR-SGD",
    "sgp": "SGP",
    "osgp": "1-OSGP",
    "d_psgd": "D-PSGD",
    "ad_psgd": "AD-PSGD",
    "local_sgd": "local SGD",
}


@dataclass(frozen=True)
class Task:
    """A model, its data and how quality is measured.

    name: the beginning of run names. words: settings of model, data and optimizer. epochs: length
    of the short schedule. metric: key of the summary; larger is better.
    unit: unit of a difference in quality. scale: factor from the metric to that unit. nodes, batch:
    the size that is tuned for. few, many: numbers of nodes for claims about that number, with
    ``small_batch`` samples each.
    """

    name: str
    words: tuple[str, ...]
    epochs: int
    metric: str
    unit: str
    scale: float
    learning_rates: tuple[float, ...]
    nodes: int
    batch: int
    few: int
    many: int
    small_batch: int
    all_reduce: tuple[str, ...] = ()

    def algorithm(self, algo: str) -> tuple[str, ...]:
        return (f"algo={algo}", *(self.all_reduce if algo == "ar_sgd" else ()))


SHAPES = Task(
    name="shapes",
    words=(
        *IMAGES,
        "data=shapes",
        "data.image_size=16",
        "data.train_size=4096",
        "data.noise=0.15",
        "optim.schedule.warmup_epochs=1",
    ),
    epochs=10,
    metric="worker_mean",
    unit="points of accuracy",
    scale=100.0,
    learning_rates=RATES,
    nodes=16,
    batch=16,
    few=4,
    many=32,
    small_batch=8,
)
DIGITS = replace(
    SHAPES,
    name="digits",
    words=(*IMAGES, "data=digits", "optim.schedule.warmup_epochs=3"),
    epochs=30,
)
# A convolutional network at full size: few images, as the gradient of each takes two milliseconds.
RESNET = replace(
    SHAPES,
    name="shapes32",
    words=(
        *(
            "model=resnet8",
            "optim.lr_reference_batch=256",
            *CLOCK,
            "data=shapes",
            "data.image_size=32",
            "data.train_size=2048",
        ),
        *("data.valid_size=500", "data.noise=0.15", "optim.schedule.warmup_epochs=1"),
    ),
    epochs=15,
    learning_rates=(0.4, 0.8, 1.6),
    batch=4,
    many=16,
    small_batch=4,
)
WITH_RESNET = (
    "The runs of shapes32, ResNet-8 on images of 32 x 32 pixels, were set down with the same "
    "ranges when all others had been seen, and before any of their own. Their size is 2,048 images "
    "and 15 epochs since the first runs of a search with half of it, on held-out samples, had "
    "ended at 20 %; the rates are those from 0.4 on, as AR-SGD had been better the higher the "
    "rate, from 0.1 to 0.8. Their noise is 0.15, at which ResNet-20 with 16,000 images turned out "
    "to reach 99 %; with so few images ResNet-8 is far from that."
)
LANGUAGE = Task(
    name="language",
    words=(
        "model=transformer",
        "model.width=32",
        "model.feed_forward=64",
        "model.encoder_layers=1",
        "model.decoder_layers=1",
        "model.dropout=0",
        "data=numbers_en_de",
        "data.train_size=4096",
        "data.valid_size=128",
        "optim=adam",
        *CLOCK,
    ),
    epochs=5,
    metric="bleu",
    unit="BLEU of the averaged model",
    scale=1.0,
    learning_rates=(0.0025, 0.005, 0.01, 0.02),
    nodes=8,
    batch=16,
    few=4,
    many=16,
    small_batch=8,
    all_reduce=("algo.average=parameters",),
)


def how_hard(results: Path) -> dict[str, Job]:
    """ResNet-20 on kinds of shapes, which are meant to be hard enough for 90 to 95 %."""
    words = (
        *(
            "algo=ar_sgd",
            "nodes=1",
            "model=resnet20",
            "data=shapes",
            "data.train_size=16000",
            "optim.schedule=cosine",
        ),
        *("optim.schedule.warmup_epochs=1", "optim.lr=0.1", "optim.weight_decay=5e-4"),
    )
    large = (
        *words,
        "data.image_size=32",
        "batch_size=64",
        "epochs=8",
        "eval_every=4",
        "log_every=100",
    )
    return {
        "16 x 16 pixels": Job(
            "shapes-difficulty",
            (*words, "data.image_size=16", "batch_size=128", "epochs=10"),
            results,
        ),
        "32 x 32 pixels": Job("shapes-difficulty-32", large, results),
        "32 x 32 pixels and noise of 0.4": Job(
            "shapes-difficulty-32-noise0.4", (*large, "data.noise=0.4"), results
        ),
    }


@dataclass(frozen=True)
class Side:
    """One side of a comparison: runs with every seed, known once the search has finished.

    name: the names of the runs without their seed.
    """

    task: Task
    name: str
    words: tuple[str, ...]
    search: Search | Joint
    results: Path
    seeds: tuple[int, ...] = SEEDS

    def job(self, seed: int) -> Job:
        return Job(
            f"{self.name}-s{seed}", (*self.words, *self.search.chosen, f"seed={seed}"), self.results
        )

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(map(self.job, self.seeds))

    @property
    def values(self) -> list[float]:
        """Quality with each seed."""
        return [self.task.scale * quality(job, self.task.metric) for job in self.jobs]


def tuned(results: Path, task: Task, algo: str) -> Search:
    """The search of an algorithm's learning rate on a task."""
    words = (*task.words, *task.algorithm(algo), *size(task.nodes, task.batch, task.epochs))
    return Search(
        f"{task.name}-{algo}", words, results, values=task.learning_rates, metric=task.metric
    )


def side(
    results: Path,
    task: Task,
    algo: str,
    label: str = "",
    words: Iterable[str] = (),
    *,
    nodes: int | None = None,
    times: int = 1,
    like: Search | Joint | None = None,
    seeds: tuple[int, ...] = SEEDS,
) -> Side:
    """Runs of ``algo`` with further settings ``words``, called ``label``.

    nodes: their number, with few samples each; by default the size that is tuned for. times: factor
    of the short schedule's epochs. like: the search that chooses settings; by default that of the
    algorithm alone.
    """
    batch = task.batch if nodes is None else task.small_batch
    nodes = nodes or task.nodes
    name = "-".join([task.name, label or algo, f"n{nodes}", *([f"x{times}"] if times > 1 else [])])
    every = (*task.words, *task.algorithm(algo), *size(nodes, batch, task.epochs * times), *words)
    return Side(task, name, every, like or tuned(results, task, algo), results, seeds)


def size(nodes: int, batch: int, epochs: int) -> tuple[str, ...]:
    return (
        f"nodes={nodes}",
        f"batch_size={batch}",
        f"epochs={epochs}",
        f"eval_every={epochs}",
        "log_every=1000",
    )


def compare(what: str, ours: Side, theirs: Side, expected: Between) -> Finding:
    """The difference in quality, ``ours`` minus ``theirs``, seed by seed."""
    what = f"{ours.task.name}: {what}, {ours.task.unit}"
    return Finding(what, paired(ours.values, theirs.values), expected, (*ours.jobs, *theirs.jobs))


def extra(
    what: str, effect: tuple[Side, Side], other: tuple[Side, Side], expected: Between
) -> Finding:
    """The amount by which one difference in quality exceeds another, seed by seed."""
    first, second = (
        [a - b for a, b in zip(ours.values, theirs.values, strict=True)]
        for ours, theirs in (effect, other)
    )
    jobs = [job for each in (*effect, *other) for job in each.jobs]
    return Finding(
        f"{effect[0].task.name}: {what}, {effect[0].task.unit}",
        paired(first, second),
        expected,
        tuple(dict.fromkeys(jobs)),
    )


def time_ratio(what: str, ours: Side, theirs: Side, expected: Between) -> Finding:
    """The ratio of simulated times: exact if no seed changes it, else with its range."""
    ratios = [
        quality(a, "time_s") / quality(b, "time_s")
        for a, b in zip(ours.jobs, theirs.jobs, strict=True)
    ]
    mean = sum(ratios) / len(ratios)
    effect = (
        exactly(mean) if alike(ratios) else Interval(mean, min(ratios), max(ratios), len(ratios))
    )
    return Finding(
        f"{ours.task.name}: {what}, ratio of simulated times",
        effect,
        expected,
        (*ours.jobs, *theirs.jobs),
    )


def all_jobs(sides: Iterable[Side]) -> tuple[Job, ...]:
    """The runs of all sides, seed by seed, so that an interrupted call leaves complete seeds."""
    return tuple(chain.from_iterable(zip(*(each.jobs for each in sides), strict=True)))


def searches(sides: Sequence[Side]) -> tuple[Search, ...]:
    """The searches of all sides, each once and after those that it depends on."""
    return tuple({search.name: search for each in sides for search in each.search.parts}.values())
