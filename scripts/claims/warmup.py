"""Claims about warm-up: large batches and scaled learning rates, with and without warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from claims.evidence import Claim, Finding, Sample
from claims.trained import Side, all_jobs, compare, one_comparison, sample, searches, side
from sgp_runner.studies.power import SeedPlan
from sgp_runner.studies.statistics import Between
from sgp_runner.studies.study_tasks import IMAGES

SMALL = 32  # images in the small batch, and per node in a large batch
FACTORS = (8, 16)  # sizes of large batches, in small batches
MARGIN = 0.02  # nats
PLAN = SeedPlan(
    matters=MARGIN,
    spread=0.0087,
    seeds=8,
    unit="nats",
    pilot="pilot: SGP less AR-SGD, both with batches of 256, seeds 201 to 204",
    equivalence=True,
)
# Seeds of the second sample, with 16 times the batch. At the effect of warm-up (0.00515 nats) and
# the spread (0.0086) of the first sample, they give a power of 84 %.
NEW_SEEDS = tuple(range(11, 37))
LARGEST = 64  # a batch of 3.2 % of the images
LARGEST_PLAN = SeedPlan(
    matters=MARGIN,
    spread=0.0172,
    seeds=8,
    unit="nats",
    pilot="assumed: twice that of 16 times the batch",
)
# 10 epochs, the first with warm-up. An epoch is 250 or 125 steps with a large batch.
TASK = replace(
    IMAGES,
    name="batches",
    words=(
        *(word for word in IMAGES.words if not word.startswith("optim.")),
        f"optim.lr_reference_batch={SMALL}",
        f"optim.schedule.reference_batch={SMALL}",
    ),
    epochs=10,
    batch=SMALL,
    rates=(0.0125, 0.05),
)


def claims(results: Path) -> Iterator[Claim]:
    yield warm_up(results)
    yield largest(results)


def runs(results: Path, label: str, factor: int, warmup: int, like: Side | None = None) -> Side:
    return side(
        results,
        TASK,
        "ar_sgd",
        label,
        (f"optim.schedule.warmup_epochs={warmup}",),
        nodes=factor,
        seeds=PLAN.numbers,
        like=like.search if like else None,
    )


def small_batch(results: Path) -> Side:
    return runs(results, "small", 1, 0)


def with_and_without(results: Path, factor: int) -> tuple[Side, Side]:
    """Return runs with a batch ``factor`` times as large, with and without warm-up."""
    small = small_batch(results)
    return runs(results, "warm", factor, 1, small), runs(results, "abrupt", factor, 0, small)


def findings(
    small: Side, pair: tuple[Side, Side], factor: int, which: str = ""
) -> Iterator[Finding]:
    """Compare a batch ``factor`` times as large, with warm-up, with two alternatives.

    They are the small batch, and the large batch without warm-up.
    """
    warm, abrupt = pair
    batch = f"a batch of {factor * SMALL} with warm-up minus"
    yield compare(
        f"{factor} times: as good as the small batch",
        f"{batch} one of {SMALL}{which}",
        warm,
        small,
        Between(-MARGIN, MARGIN),
        primary=factor == FACTORS[0],
    )
    yield compare(
        f"{factor} times: warm-up helps",
        f"{batch} without{which}",
        warm,
        abrupt,
        Between(most=0.0),
    )


def warm_up(results: Path) -> Claim:
    small = small_batch(results)
    pairs = {factor: with_and_without(results, factor) for factor in FACTORS}
    again = FACTORS[-1]
    new_small, warm, abrupt = (replace(each, seeds=NEW_SEEDS) for each in (small, *pairs[again]))
    second = Sample(
        lambda: all_jobs((new_small, warm, abrupt)),
        lambda: list(findings(new_small, (warm, abrupt), again, ", second sample")),
        searches((new_small,)),
    )

    def find() -> Iterator[Finding]:
        for factor, pair in pairs.items():
            for each in findings(small, pair, factor):
                yield replace(each, earlier=factor == again and second.finished)

    every = (small, *(each for pair in pairs.values() for each in pair))
    return Claim(
        number=11,
        earlier="contradicted",
        subject="Warm-up of large batches",
        sentence=(
            "With its learning rate scaled in proportion, a large batch is as good as a small one "
            "after a gradual warm-up, and worse without it."
        ),
        answer=(
            "Yes, by a small margin. With 8 and 16 times the batch, the loss differs by {0} "
            "and {4} nats. Warm-up gains {5:size} with 16 times the batch. With 8 times, the "
            "gain is too small to decide."
        ),
        source=(
            "Goyal et al. 2017 (error 23.60 ± 0.12 % with a batch of 256; with 8,192, 23.74 ± 0.09 "
            "% and 24.84 ± 0.37 %)"
        ),
        tried=(
            f"AR-SGD: one node with batches of {SMALL}, and {FACTORS[0]} or {FACTORS[1]} with the "
            "same batch each. The learning rate is searched for the small batch alone and scales "
            f"with the batch, as the sentence says. As good means within {MARGIN:g} nats. A large "
            "batch is 0.4 or 0.8 % of the images (Goyal: 0.6 %), an epoch 250 or 125 steps (156). "
            "In the earlier design it was 13 %, and an epoch 8 steps, beyond where the rule holds. "
            f"Of {again} times the batch eight seeds left both findings undecided, the first once "
            "it was adjusted for the others. A second sample "
            f"of {len(NEW_SEEDS)} other seeds, set down before it was run, decides alone; no seed "
            "was added to the first."
        ),
        samples=(sample(every, find), second),
        plan=PLAN,
    )


def largest(results: Path) -> Claim:
    warm, abrupt = with_and_without(results, LARGEST)
    return Claim(
        number=26,
        explains=11,
        subject="Warm-up, 64 times the batch",
        answer=(
            "Undecided. Warm-up gains {0:size} nats, but with this learning rate the spread "
            "between seeds is larger."
        ),
        sentence=(
            "That claim 11 cannot tell what warm-up adds is due to its learning rates: with "
            f"{LARGEST} times the batch, and so the learning rate, warm-up helps."
        ),
        tried=(
            f"As claim 11, with batches of {LARGEST * SMALL}, 3.2 % of the images, an epoch of "
            "some 31 steps. The first epoch is the warm-up."
        ),
        samples=(
            one_comparison(
                "warm-up helps",
                f"a batch of {LARGEST * SMALL} with warm-up minus without",
                warm,
                abrupt,
                Between(most=0.0),
            ),
        ),
        plan=LARGEST_PLAN,
    )
