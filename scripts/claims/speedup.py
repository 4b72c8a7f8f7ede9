"""Linear speed-up: n nodes reach a gradient norm in one n-th of the steps.

The problem is not convex, and its true gradient is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from claims.computed import Computed
from claims.evidence import Finding
from claims.recorded import job_of
from sgp_runner.jobs.job_pool import RunJob
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.studies.statistics import Between, mean_of

SEEDS = (1, 2, 3, 4, 5)
NEW_SEEDS = (6, 7, 8, 9, 10, 11, 12, 13, 14, 15)  # seeds of the second sample
NODES = (1, 4, 16, 64)  # each with STEPS steps
STEPS = 1024
MORE_STEPS = (256, 1024, 4096)  # each on FEW nodes
FEW = 4
LOOKS = 64  # evaluations of the averaged model's gradient, evenly spaced over a run
BATCH = 4
HALF = Between(-0.6, -0.4)
Points = Callable[[int], dict[RunJob, int]]  # seed -> runs with their number of nodes or steps


def learning_rate(nodes: int, steps: int) -> float:
    return 0.5 * math.sqrt(nodes / steps)


def job(results: Path, nodes: int, steps: int, seed: int, lr: float | None = None) -> RunJob:
    """Return a run of ``steps`` steps on ``nodes``; ``lr`` replaces the theorem's learning rate."""
    overrides = (
        *("algo=sgp", "model=mlp", "model.hidden=[8]", "model.activation=tanh", "data=teacher"),
        *("data.noise=2", "optim.momentum=0", "optim.nesterov=false", "optim.weight_decay=0"),
        *("optim.schedule=constant", f"nodes={nodes}", f"batch_size={BATCH}", f"epochs={LOOKS}"),
        f"data.samples={steps // LOOKS * nodes * BATCH}",
        *(f"optim.lr={lr or learning_rate(nodes, steps)}", f"seed={seed}"),
        *("eval_workers=false", "log_every=100000"),
    )
    name = f"claim10-n{nodes}-k{steps}{'-fast' if lr else ''}-s{seed}"
    return job_of(results, overrides, name)


def mean_square(job: RunJob) -> float:
    """Return the mean squared norm of the averaged model's true gradient, over the evaluations."""
    squares = [
        float(str(record["gradient_norm"])) ** 2
        for record in read_metrics(job.folder)
        if record["kind"] == "average"
    ]
    assert len(squares) == LOOKS
    return math.fsum(squares) / LOOKS


def exponent(points: Mapping[RunJob, int]) -> float:
    """Return the exponent in a power law for the mean squared gradient norm.

    ``points`` has the run for each number of nodes or steps. The fit is least squares of the
    logarithms.
    """
    from scipy.stats import linregress

    return float(
        linregress(
            [math.log(x) for x in points.values()], [math.log(mean_square(job)) for job in points]
        ).slope
    )


def computed(results: Path) -> Computed:
    def over_nodes(seed: int) -> dict[RunJob, int]:
        return {job(results, nodes, STEPS, seed): nodes for nodes in NODES}

    def over_steps(seed: int) -> dict[RunJob, int]:
        return {job(results, FEW, steps, seed): steps for steps in MORE_STEPS}

    def over_both(seed: int) -> dict[RunJob, int]:
        return {job: n * STEPS for job, n in over_nodes(seed).items()} | {
            job: k * FEW for job, k in over_steps(seed).items()
        }

    def alone(seed: int) -> RunJob:
        return job(results, 1, STEPS, seed, learning_rate(NODES[-1], STEPS))

    def fitted(
        part: str, what: str, points: Points, seeds: Iterable[int] = SEEDS, earlier: bool = False
    ) -> Finding:
        return Finding(
            part,
            what,
            "exponent of the mean squared gradient norm",
            mean_of([exponent(points(seed)) for seed in seeds]),
            HALF,
            tuple(job for seed in seeds for job in points(seed)),
            primary=points is over_both,
            earlier=earlier,
        )

    of_steps = f"{MORE_STEPS[0]} to {MORE_STEPS[-1]} steps"
    of_nodes = f"{NODES[0]} to {NODES[-1]} nodes"

    def find() -> list[Finding]:
        pairs = [(alone(seed), job(results, NODES[-1], STEPS, seed)) for seed in SEEDS]
        return [
            fitted("in n", of_nodes, over_nodes),
            fitted("in K", of_steps, over_steps, earlier=True),
            fitted("in nK", "both", over_both),
            Finding(
                "nodes, not rates",
                f"one node with the rate of {NODES[-1]} / {NODES[-1]} nodes",
                "ratio of mean squared gradient norms",
                mean_of([mean_square(one) / mean_square(many) for one, many in pairs]),
                Between(least=8.0),
                tuple(job for pair in pairs for job in pair),
            ),
            fitted("in K", f"{of_steps}, second sample", over_steps, NEW_SEEDS),
        ]

    jobs = [job for seed in SEEDS for job in (*over_both(seed), alone(seed))]
    jobs += [job for seed in NEW_SEEDS for job in over_steps(seed)]
    return Computed(jobs, find)
