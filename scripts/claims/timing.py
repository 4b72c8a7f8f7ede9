"""Claims about time and bytes, simulated on profiles of the papers' clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from claims.computed import Computed
from claims.evidence import Finding
from claims.recorded import job_of
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.studies.measures import number
from sgp_runner.studies.statistics import Between, alike, exactly, mean_of
from sgp_runner.studies.study_tasks import GRAMMAR

RATIO = "ratio of times per iteration"
TIMED = ("model=timing_only", "log_every=480")

ROWS = {"AR-SGD": "sgp_ar_sgd_90", "SGP": "sgp_sgp_90", "1-OSGP": "sgp_osgp_270"}
SIZES = (4, 8, 16, 32)
PLACES = {"sgp_ethernet": "Ethernet", "sgp_infiniband": "InfiniBand"}

SLOW = (2, 10, 100)
SLOWED = {"ar_sgd": "AR-SGD", "d_psgd": "D-PSGD", "ad_psgd": "AD-PSGD"}
WHERE = {"node": "sgp_infiniband", "link": "sgp_ethernet"}

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

SLOWMO_ROWS = (
    "slowmo_imagenet_local_sgd",
    "slowmo_imagenet_sgp",
    "slowmo_imagenet_osgp",
    "slowmo_wmt16_local_adam",
)


def ms(job: RunJob) -> float:
    """Return simulated milliseconds per iteration of a finished timing study."""
    return number(job, "ms_per_iteration")


def compute_ms(job: RunJob) -> float:
    """Return the mean compute time of one ResNet-50 gradient on the run's cluster, in ms."""
    assert job.config is not None
    return 1000 * float(job.config["cluster"]["compute"]["step_seconds"]["resnet50"])


def ratio(
    part: str, what: str, above: RunJob, below: RunJob, expected: Between, unit: str = RATIO
) -> Finding:
    """Return the ratio of the times of two timing studies."""
    return Finding(part, what, unit, exactly(ms(above) / ms(below)), expected, (above, below))


def marked(findings: Sequence[Finding], place: int) -> list[Finding]:
    """Return the findings, with the one at ``place`` as the primary one."""
    return [replace(finding, primary=i == place) for i, finding in enumerate(findings)]


def growth(results: Path) -> Computed:
    """Return the times per iteration as the number of nodes grows."""

    def job(name: str, cluster: str, nodes: int) -> RunJob:
        overrides = (f"experiment={ROWS[name]}", f"cluster={cluster}", f"nodes={nodes}")
        return job_of(
            results, [*overrides, *TIMED, "row=null"], f"claim3-{ROWS[name]}-{cluster}-n{nodes}"
        )

    def grown(part: str, name: str, expected: Between) -> Finding:
        first, last = (job(name, "sgp_ethernet", nodes) for nodes in (SIZES[0], SIZES[-1]))
        what = f"{name}, {SIZES[-1]} nodes / {SIZES[0]}"
        return ratio(part, what, last, first, expected)

    def advantage(part: str, cluster: str, expected: Between) -> Finding:
        slow, fast = (job(name, cluster, 32) for name in ("AR-SGD", "SGP"))
        return ratio(part, f"AR-SGD / SGP, {PLACES[cluster]}", slow, fast, expected)

    def find() -> list[Finding]:
        hidden = job("1-OSGP", "sgp_ethernet", 32)
        every = [
            grown("SGP is flat", "SGP", Between(0.95, 1.05)),
            grown("OSGP is flat", "1-OSGP", Between(0.95, 1.05)),
            grown("AR-SGD grows", "AR-SGD", Between(least=1.5)),
            advantage("advantage on Ethernet", "sgp_ethernet", Between(least=2.0)),
            advantage("none on InfiniBand", "sgp_infiniband", Between(0.9, 1.1)),
            Finding(
                "1-OSGP hides its communication",
                "1-OSGP / its compute time",
                RATIO,
                exactly(ms(hidden) / compute_ms(hidden)),
                Between(1.0, 1.02),
                (hidden,),
            ),
        ]
        return marked(every, 0)

    return Computed([job(*case) for case in product(ROWS, PLACES, SIZES)], find)


def one_slow(
    results: Path, algo: str, kind: str, factor: int, overrides: Sequence[str] = ()
) -> RunJob:
    """Return a run of 16 nodes; one node, or its link, is ``factor`` times slower."""
    every = (
        *(f"algo={algo}", "nodes=16", f"cluster={WHERE[kind]}", "epochs=16"),
        *(() if factor == 1 else (f"faults.slow_{kind}s={{3: {factor}}}",)),
        *(
            "model=timing_only",
            "model.sample_steps=null",
            "row=null",
            "log_every=100000",
            *overrides,
        ),
    )
    claim = "claim24" if overrides else "claim6"
    return job_of(results, every, f"{claim}-{algo}-slow_{kind}-x{factor}")


def slow_down(
    job: partial[RunJob], part: str, what: str, factor: int, stays: bool = False
) -> Finding:
    """Return how many times longer a run takes with a slow node or link."""
    expected = Between(most=1.15) if stays else Between(least=0.8 * factor)
    return ratio(part, what, job(factor), job(1), expected, "slow-down of the run")


def slow_parts(results: Path) -> Computed:
    """Return what one slow node, or link, costs each algorithm."""
    jobs = {
        (kind, algo): partial(one_slow, results, algo, kind)
        for kind, algo in product(WHERE, SLOWED)
    }

    def find() -> list[Finding]:
        every = [
            slow_down(
                jobs[kind, algo],
                f"a slow {kind}: {SLOWED[algo]}",
                f"{SLOWED[algo]} on {WHERE[kind]}, one {kind} of 16 slowed {factor} times",
                factor,
                stays=algo == "ad_psgd",
            )
            for kind, algo, factor in product(WHERE, SLOWED, SLOW)
        ]
        return marked(every, 8)

    return Computed([job(x) for job in jobs.values() for x in (1, *SLOW)], find)


def slow_network(results: Path) -> Computed:
    """Return what a slow link costs AR-SGD where all links are slow."""

    def job(factor: int) -> RunJob:
        return one_slow(results, "ar_sgd", "link", factor, ("cluster.bandwidth=1e9",))

    what = "AR-SGD, one link of 16 slowed {} times"

    def find() -> list[Finding]:
        return marked(
            [slow_down(partial(job), "that factor", what.format(x), x) for x in SLOW], len(SLOW) - 1
        )

    return Computed([job(x) for x in (1, *SLOW)], find)


def slowmo_times(results: Path) -> Computed:
    """Return the time per iteration with SlowMo over that without, for published rows."""

    def timed(row: str) -> RunJob:
        return job_of(results, (f"experiment={row}", *TIMED), f"timing-{row}")

    def find() -> list[Finding]:
        part, what = "negligible time", "{}: with SlowMo over without"
        return [
            ratio(part, what.format(row), timed(f"{row}_slowmo"), timed(row), Between(most=1.02))
            for row in SLOWMO_ROWS
        ]

    return Computed([timed(f"{row}{end}") for row in SLOWMO_ROWS for end in ("", "_slowmo")], find)


def pipe_study(results: Path, row: str, model: str) -> RunJob:
    """Return the timing study of a published row of Pipe-SGD for a model in `MODELS`."""
    overrides = (f"experiment={row}", *TIMED, *MODELS[model])
    return RunJob(f"timing-{row}-{model}", overrides, results)


def pipe_times(results: Path) -> Computed:
    """Return the time per iteration of Pipe-SGD against its baselines and for wider pipelines."""
    study = partial(pipe_study, results)

    def wide(width: int, model: str, seed: int | None = None) -> RunJob:
        plain = study(PIPES["none"], model)
        if width == WIDTHS[0] and seed is None:
            return plain
        gamma = () if seed is None else ("cluster.compute_time=gamma", f"seed={seed}")
        name = "-".join([f"claim9-k{width}-{model}", *gamma])
        return job_of(results, [*plain.overrides, f"algo.depth={width}", "row=null", *gamma], name)

    def jittery(width: int, model: str) -> list[RunJob]:
        return [wide(width, model, seed) for seed in JITTER_SEEDS]

    def against_baselines() -> Iterator[Finding]:
        for model, (name, row), (coding, pipe) in product(MODELS, BASELINES.items(), PIPES.items()):
            what = f"{model}: {name} over Pipe-SGD, width 2, compression {coding}"
            slow, fast = study(row, model), study(pipe, model)
            yield ratio(f"faster than {name}", what, slow, fast, Between(least=1.05))

    def wider() -> Iterator[Finding]:
        part, expected = "wider: no faster", Between(least=0.98)
        for model, width in product(MODELS, WIDTHS[1:]):
            what = f"{model}: width {width} over width 2"
            yield ratio(part, what, wide(width, model), wide(2, model), expected)
        for model in MODELS:
            pairs = list(zip(jittery(4, model), jittery(2, model), strict=True))
            ratios = [ms(a) / ms(b) for a, b in pairs]
            what = f"{model}: width 4 over width 2, compute times varying by a Gamma law (10 %)"
            same = alike(ratios)  # if the network limits the speed
            effect = exactly(ratios[0]) if same else mean_of(ratios)
            jobs = (*(a for a, _ in pairs), *(b for _, b in pairs))
            yield Finding(part, what, RATIO, effect, expected, jobs)

    every = [study(row, m) for row, m in product((*BASELINES.values(), *PIPES.values()), MODELS)]
    every += [wide(width, model) for width, model in product(WIDTHS[1:], MODELS)]
    every += [job for width, model in product((2, 4), MODELS) for job in jittery(width, model)]
    return Computed(every, lambda: [*against_baselines(), *wider()])


def two_nodes(results: Path) -> Computed:
    """Return the bytes of Streaming DiLoCo in 4 bits over those in 32 bits, between two nodes."""
    plain = (*GRAMMAR.settings("streaming_diloco", 2, 1), "optim.lr=0.04", "seed=1")
    codecs = {"fp4": ("codec@algo.codec=fp4",), "whole": ()}
    coded, whole = (
        job_of(results, [*plain, *codec, "algo.period=10"], f"claim25-{name}")
        for name, codec in codecs.items()
    )

    def find() -> list[Finding]:
        sent = [number(job, "bytes_per_node") for job in (coded, whole)]
        return [
            Finding(
                "an eighth of the bytes",
                "4 bits / 32, bytes",
                "ratio of the bytes that a node sends",
                exactly(sent[0] / sent[1]),
                Between(most=0.13),
                (coded, whole),
                primary=True,
            )
        ]

    return Computed((coded, whole), find)
