"""Linear scaling and warm-up: a batch many times larger, its learning rate scaled alike, with and without a gradual start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from sgp_runner.batch import Job
from sgp_runner.claims.evidence import Between, Claim, Finding, paired
from sgp_runner.claims.tuning import Search, quality

LEARNING_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)  # of the small batch


@dataclass(frozen=True)
class Setting:
    """batch: of one node, the small one. factor: nodes of the large batch. warmup: epochs."""

    batch: int
    factor: int
    epochs: int
    warmup: int
    seeds: tuple[int, ...]


MODELS = {"mlp": Setting(4, 32, 20, 4, (1, 2, 3, 4, 5)), "resnet8": Setting(16, 8, 12, 2, (1, 2, 3, 4, 5))}


def claims(results: Path) -> Iterator[Claim]:
    yield warm_up(results)


def warm_up(results: Path) -> Claim:
    def words(model: str, nodes: int, warmup: int) -> tuple[str, ...]:
        own = MODELS[model]
        start = (f"optim.schedule.warmup_epochs={warmup}", f"optim.schedule.reference_batch={own.batch}")
        return (
            *("algo=ar_sgd", f"model={model}", "data=digits", f"nodes={nodes}", f"batch_size={own.batch}", f"epochs={own.epochs}"),
            *(f"optim.lr_reference_batch={own.batch}", *start, "eval_every=100", "log_every=100000"),
        )

    def search(model: str) -> Search:
        """With one node, whose warm-up starts at the peak."""
        own = MODELS[model]
        return Search(f"claim11-{model}", words(model, 1, own.warmup), results, values=LEARNING_RATES, metric="average")

    def jobs(model: str, kind: str) -> list[Job]:
        own = MODELS[model]
        nodes, warmup = {"small": (1, own.warmup), "large": (own.factor, own.warmup), "abrupt": (own.factor, 0)}[kind]
        settings = (*words(model, nodes, warmup), *search(model).chosen)
        return [Job(f"claim11-{model}-{kind}-s{seed}", (*settings, f"seed={seed}"), results) for seed in own.seeds]

    def less(model: str, ours: str, theirs: str, what: str, expected: Between) -> Finding:
        a, b = ([100 * quality(job, "average") for job in jobs(model, kind)] for kind in (ours, theirs))
        own = MODELS[model]
        batches = f"batches of {own.batch} and {own.batch * own.factor}"
        return Finding(f"{model}, {batches}: {what}, percentage points", paired(a, b), expected, (*jobs(model, ours), *jobs(model, theirs)))

    def find() -> Sequence[Finding]:
        return [
            finding
            for model in MODELS
            for finding in (
                less(model, "large", "abrupt", "accuracy of the large one with warm-up less without", Between(least=0.0)),
                less(model, "large", "small", "accuracy of the large one with warm-up less the small one", Between(-1.0, 1.0)),
            )
        ]

    return Claim(
        number=11,
        sentence="With its learning rate scaled in proportion, a large batch is as accurate as a small one after a gradual warm-up, and "
        "less without it.",
        source="Goyal et al. 2017 (error 23.60 ± 0.12 % with a batch of 256; with 8,192, 23.74 ± 0.09 % and 24.84 ± 0.37 %)",
        tried="AR-SGD on digits: one node, and 32 (8 for resnet8) with the same batch each; one epoch of the largest batch has 11 steps, "
        "where Goyal's has 156. The learning rate is tuned for the small batch alone. As accurate means within one percentage point. A "
        "run that diverged has accuracy 0. Expected, before any run: the published order. The presets goyal_* are the published runs, "
        "which need a cluster.",
        jobs=lambda: [job for model, kind in product(MODELS, ("small", "large", "abrupt")) for job in jobs(model, kind)],
        find=find,
        searches=tuple(map(search, MODELS)),
    )
