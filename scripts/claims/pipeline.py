"""Claims about Pipe-SGD: its accuracy, its speed, and the effect of wider pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from claims.evidence import Claim, Finding, Sample
from claims.timing import ms
from claims.trained import Side, all_jobs, compare, one_comparison, searches, side
from sgp_runner.session.job_pool import RunJob
from sgp_runner.studies.power import SeedPlan
from sgp_runner.studies.statistics import Between, alike, exactly, mean_of
from sgp_runner.studies.study_tasks import IMAGES

# Models of the timing studies; AlexNet has more parameters relative to its compute time.
MODELS = {"resnet18": (), "alexnet": ("timed_as.model=alexnet", "timed_as.num_parameters=61100840")}
BASELINES = {"PS-Sync": "pipesgd_ps_sync", "D-Sync": "pipesgd_d_sync"}
PIPES = {
    "none": "pipesgd_pipe_sgd",
    "truncate16": "pipesgd_pipe_sgd_truncate16",
    "quantize8": "pipesgd_pipe_sgd_quantize8",
}
WIDTHS = (2, 3, 4)
JITTER_SEEDS = (1, 2, 3, 4, 5)
RATIO = "ratio of times per iteration"
MARGIN = 0.02  # nats
PLAN = SeedPlan(
    matters=MARGIN,
    spread=0.0087,
    seeds=8,
    unit="nats",
    pilot="pilot: SGP less AR-SGD on images",
    equivalence=True,
)
HALF = 0.074  # nats, half of the loss that Pipe-SGD added with 1,250 steps
LONG_PLAN = SeedPlan(
    matters=0.05,
    spread=0.03,
    seeds=6,
    unit="nats",
    pilot="that with 1,250 steps",
)


def study(results: Path, row: str, model: str) -> RunJob:
    """Return the timing study of a published row for a model in `MODELS`."""
    words = (f"experiment={row}", "model=timing_only", "log_every=480", *MODELS[model])
    return RunJob(f"timing-{row}-{model}", words, results)


def claims(results: Path) -> Iterator[Claim]:
    yield pipe_sgd(results)
    yield longer(results)


def trained(results: Path, algo: str, width: int = 2) -> Side:
    """Return the runs of an algorithm on four nodes."""
    own = (f"algo.depth={width}", "algo.warmup_epochs=0.5") if algo == "pipe_sgd" else ()
    label = f"pipe_sgd{width}" if own else algo
    return side(results, IMAGES, algo, label, own, nodes=4, seeds=PLAN.numbers)


def pipe_sgd(results: Path) -> Claim:
    def wide(width: int, model: str) -> RunJob:
        plain = study(results, PIPES["none"], model)
        return (
            plain
            if width == 2
            else RunJob(
                f"claim9-k{width}-{model}",
                (*plain.words, f"algo.depth={width}", "row=null"),
                results,
            )
        )

    def jittery(width: int, model: str, seed: int) -> RunJob:
        words = (
            *study(results, PIPES["none"], model).words,
            f"algo.depth={width}",
            "cluster.compute_time=gamma",
            f"seed={seed}",
            "row=null",
        )
        return RunJob(f"claim9-gamma-k{width}-{model}-s{seed}", words, results)

    two, four = (trained(results, "pipe_sgd", width) for width in (2, 4))
    ar = trained(results, "ar_sgd")
    sides = (two, four, ar)

    def find() -> Iterator[Finding]:
        yield compare(
            "keeps AR-SGD's quality",
            "Pipe-SGD of width 2 with warm-up minus AR-SGD",
            two,
            ar,
            Between(-MARGIN, MARGIN),
            primary=True,
        )
        yield compare(
            "wider: no better",
            "Pipe-SGD of width 4 minus width 2",
            four,
            two,
            Between(least=-MARGIN),
        )
        for model, (name, row), (compression, pipe_row) in product(
            MODELS, BASELINES.items(), PIPES.items()
        ):
            slow, fast = study(results, row, model), study(results, pipe_row, model)
            what = f"{model}: {name} over Pipe-SGD, width 2, compression {compression}"
            yield Finding(
                f"faster than {name}",
                what,
                RATIO,
                exactly(ms(slow) / ms(fast)),
                Between(least=1.05),
                (slow, fast),
            )
        for model, width in product(MODELS, WIDTHS[1:]):
            narrow, wider = wide(2, model), wide(width, model)
            what = f"{model}: width {width} over width 2"
            yield Finding(
                "wider: no faster",
                what,
                RATIO,
                exactly(ms(wider) / ms(narrow)),
                Between(least=0.98),
                (wider, narrow),
            )
        for model in MODELS:
            a, b = ([jittery(width, model, seed) for seed in JITTER_SEEDS] for width in (4, 2))
            ratios = [ms(wider) / ms(narrow) for wider, narrow in zip(a, b, strict=True)]
            what = f"{model}: width 4 over width 2, compute times varying by a Gamma law (10 %)"
            effect = (
                exactly(ratios[0]) if alike(ratios) else mean_of(ratios)
            )  # equal if the network limits the speed
            yield Finding("wider: no faster", what, RATIO, effect, Between(least=0.98), (*a, *b))

    def jobs() -> Iterator[RunJob]:
        yield from all_jobs(sides)
        yield from (
            study(results, row, model)
            for row, model in product((*BASELINES.values(), *PIPES.values()), MODELS)
        )
        yield from (wide(width, model) for width, model in product(WIDTHS[1:], MODELS))
        yield from (
            jittery(width, model, seed)
            for width, model, seed in product((2, 4), MODELS, JITTER_SEEDS)
        )

    return Claim(
        number=9,
        earlier="reproduced",
        subject="Pipe-SGD",
        sentence=(
            "Pipe-SGD of width 2 with warm-up keeps AR-SGD's accuracy and is faster than PS-Sync "
            "and D-Sync on 4 nodes; wider pipelines gain no more."
        ),
        answer=(
            "No. With 1,250 steps, {0} nats are lost. With four times as many steps the loss "
            "is a tenth of that, but the runs do not show that it is within 0.02 (claim 20)."
        ),
        source="Li et al. 2018, abstract (up to 5.4 times faster)",
        tried=(
            "4 nodes of 64 images, the learning rate searched for each algorithm and width. To "
            f"keep AR-SGD's quality means within {MARGIN:g} nats, set before any run. Times are "
            "timing studies on pipesgd_titanxp, whose compute "
            "times are derived from operation counts and which takes compression to cost nothing: "
            "only a cluster can confirm them. Gains over the baselines were known when it was "
            "asked that they be 5 % or more, the times of wider pipelines were not. The published "
            "5.4 is not judged, since model, compression and baseline behind it are not available "
            "here: the findings show how much depends on them."
        ),
        samples=(
            Sample(
                jobs=lambda: tuple(jobs()),
                find=lambda: tuple(find()),
                searches=searches(sides),
            ),
        ),
        plan=PLAN,
    )


def longer(results: Path) -> Claim:
    pipe, ar = (
        trained(results, algo).lengthened(4, LONG_PLAN.numbers) for algo in ("pipe_sgd", "ar_sgd")
    )

    return Claim(
        number=20,
        explains=9,
        subject="Pipe-SGD, four times longer",
        sentence=(
            "What Pipe-SGD loses to AR-SGD in claim 9 is due to its few steps: with four times as "
            "many it loses half as much at most."
        ),
        answer=(
            "Yes. It loses {0} nats. The runs do not show that this is within the 0.02 nats "
            "of claim 9."
        ),
        tried=(
            "4 nodes of 64 images, 5,000 steps through 256,000 images. The learning rates are "
            "those found for 1,250 steps."
        ),
        samples=(
            one_comparison(
                "at most half as far",
                "Pipe-SGD of width 2 with warm-up minus AR-SGD",
                pipe,
                ar,
                Between(most=HALF),
            ),
        ),
        plan=LONG_PLAN,
    )
