"""Linear scaling and warm-up: a batch many times larger, its learning rate scaled alike, with and without a gradual start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sgp_runner.batch import Job
from sgp_runner.claims.evidence import Between, Claim, Finding, paired
from sgp_runner.claims.tuning import Search, quality

LEARNING_RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)  # of the small batch
SEEDS = (1, 2, 3, 4, 5)
BATCH, FACTOR = 4, 32  # the small batch, and how many times larger the other one is: that many nodes
WARMUP = 4  # epochs


def claims(results: Path) -> Iterator[Claim]:
    yield warm_up(results)


def warm_up(results: Path) -> Claim:
    def words(nodes: int, warmup: int) -> tuple[str, ...]:
        return (
            *("algo=ar_sgd", "model=mlp", "data=digits", f"nodes={nodes}", f"batch_size={BATCH}", "epochs=20"),
            *(f"optim.lr_reference_batch={BATCH}", f"optim.schedule.reference_batch={BATCH}", f"optim.schedule.warmup_epochs={warmup}"),
            *("eval_every=100", "log_every=100000"),
        )

    search = Search("claim11", words(1, 0), results, values=LEARNING_RATES, metric="average")

    def jobs(kind: str) -> list[Job]:
        nodes, warmup = {"small": (1, 0), "large": (FACTOR, WARMUP), "abrupt": (FACTOR, 0)}[kind]
        return [Job(f"claim11-{kind}-s{seed}", (*words(nodes, warmup), *search.chosen, f"seed={seed}"), results) for seed in SEEDS]

    def less(ours: str, theirs: str, what: str, expected: Between) -> Finding:
        a, b = ([100 * quality(job, "average") for job in jobs(kind)] for kind in (ours, theirs))
        return Finding(f"accuracy of {what}, percentage points", paired(a, b), expected, (*jobs(ours), *jobs(theirs)))

    def find() -> Sequence[Finding]:
        large = f"a batch of {BATCH * FACTOR} with warm-up"
        return [
            less("large", "abrupt", f"{large} less that without", Between(least=0.0)),
            less("large", "small", f"{large} less that of {BATCH}", Between(-1.0, 1.0)),
        ]

    return Claim(
        number=11,
        sentence="With its learning rate scaled in proportion, a large batch is as accurate as a small one after a gradual warm-up, and "
        "less without it.",
        source="Goyal et al. 2017 (error 23.60 ± 0.12 % with a batch of 256; with 8,192, 23.74 ± 0.09 % and 24.84 ± 0.37 %)",
        tried=f"AR-SGD and a perceptron on digits: one node, and {FACTOR} with the same batch each. An epoch of the large batch has 11 "
        f"steps, where Goyal's has 156; its learning rate rises over {WARMUP} of 20 epochs and is tuned for the small batch alone. As "
        "accurate means within one percentage point. A run that diverged has accuracy 0. Expected, before any run: the published order. "
        "The presets goyal_* are the published runs, which need a cluster.",
        jobs=lambda: [job for kind in ("small", "large", "abrupt") for job in jobs(kind)],
        find=find,
        searches=(search,),
    )
