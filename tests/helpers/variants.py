"""Every algorithm, simulated and on real processes of some network: they end with the same
parameters and the same summary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from helpers.experiments import (
    composed,
    distance,
    from_tree,
    instrumented,
    make_experiment,
    steps_taken,
)
from helpers.paths import RANKS
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.overrides import prepare_algorithms
from sgp_runner.recording.recorder import read_summary, write_summary
from sgp_runner.recording.throughput import RATES
from sgp_runner.utils.errors import ConfigError, Diverged, RankFailed

# Eight steps of a network with BatchNorm, in double precision, and few images to evaluate it on.
NOISE = (
    "data=synthetic",
    "data.image_size=8",
    "data.num_classes=10",
    "data.size=288",
    "data.valid_size=32",
)
TINY = (
    "dtype=float64",
    "model=resnet8",
    *NOISE,
    "nodes=4",
    "batch_size=8",
    "epochs=0.9",
    "log_every=1",
)
SMALL = tuple(word.replace("resnet8", "mlp") for word in TINY)
SYNCHRONOUS = {
    "ar_sgd": (),
    "ar_sgd of parameters": ("algo.average=parameters",),
    "d_psgd": (),
    "d_psgd adapting first": ("algo.order=adapt_then_combine",),
    "sgp": (),
    "osgp": ("algo.tau=0",),
    "osgp as released": ("algo.tau=0", "algo.layout=released"),
    "slowmo": ("algo.tau=3",),
    "slowmo of local_sgd": ("base@algo.base=local_sgd", "algo.tau=3", "algo.buffers=average"),
    "local_sgd": ("algo.tau=3",),
    "pipe_sgd": (),
    "pipe_sgd compressed": ("algo.compression=quantize8",),
    "hybrid": ("algo.switch_epoch=0.5",),
    "ps_sgd": (),
}
# With local steps, coded messages, or gossip for unequal data.
SMALL_CODEC = ("algo.codec=top_k", "algo.codec.k=30", "algo.codec.side=32")
LOW_COMMUNICATION = {
    "ar_sgd coded": SMALL_CODEC,
    "diloco": ("algo.period=3",),
    "diloco delayed": ("algo.period=3", "algo.overlap=delayed"),
    "diloco eager": ("algo.period=3", "algo.overlap=eager"),
    "streaming_diloco": ("algo.period=3",),
    "streaming_diloco coded": ("algo.period=4", "algo.delay=2", "algo.codec=fp4"),
    "noloco": ("algo.period=2",),
    "sparseloco": ("algo.period=3", "algo.codec.k=30"),
    "demo": ("algo.k=3",),
    "powersgd": ("algo.start=2",),
    "powersgd as released": ("algo.error=released", "algo.rank=1"),
    "acp_sgd": (),
    "des_loc": ("algo.period=2", "optim=adamw", "algo.period_u=3", "algo.period_v=5"),
    "relay_sgd": (),
    "relay_sgd filling with its own": ("algo.fill=own", "algo.topology.branches=1"),
    # Some gradients are 0 in the first steps, so eps is large where the variance is frozen then.
    "onebit_adam": ("optim=adamw", "optim.eps=0.1", "algo.warmup_epochs=0.3"),
    "zero_one_adam": (
        *("algo.freeze_epochs=0.4", "algo.kappa=1", "algo.doubling=1"),
        *("optim=adamw", "optim.eps=0.1"),
    ),
    "ef_sign": (),
    "acco": (),
    "accum_adam": ("algo.accumulate=3", "optim=adamw"),
    "choco_sgd": SMALL_CODEC,
    "choco_sgd as released": ("algo.layout=released", "algo.codec=low_rank", "algo.gamma=0.1"),
    "qg_dsgdm": (),
    "d_squared": (),
    "gradient_tracking": (),
    "gossip_pga": ("algo.period=3",),
    "sgp over rounds": ("algo.topology=base", "nodes=5"),
    "d_psgd over rounds": ("algo.topology=base", "nodes=5"),
}
# Asynchronous ones: one worker makes the same steps in any time.
ALONE = {
    "a2cid2": ("nodes=1",),
    "ad_psgd": ("nodes=1",),
    "async_diloco": ("nodes=1", "algo.period=3"),
    "gap_aware": ("nodes=1",),
    "halos": ("nodes=1", "algo.regions=1", "algo.period=3", "algo.arrivals=100"),
    "rennala": ("nodes=1", "algo.batch=2"),
    "ringleader": ("nodes=1",),
    "ringmaster": ("nodes=1",),
    "swarm_sgd": ("nodes=1",),
}
ELSEWHERE = re.compile(r"(model|optim)=|\w+@cluster")  # choices outside the algorithm
OF_MACHINES = ("name", "run_dir", "network", "label", "clock", "time_s", "real_s", *RATES)
Results = dict[str, tuple[Experiment, Experiment]]


def simulate_all(
    folder: Path,
    network: str,
    *machines: str,
    tiny: tuple[str, ...] = TINY,
    variants: Mapping[str, tuple[str, ...]] = SYNCHRONOUS,
) -> Results:
    """Every algorithm's run in the simulator, done, and its counterpart on ``network`` and
    ``machines``, which is still to be run.
    """
    results: Results = {}
    there = composed(f"network={network}", *machines)
    algorithms = {name: (f"algo={name.split()[0]}", *options) for name, options in variants.items()}
    alone = [
        settings for settings in algorithms.values() if not any(map(ELSEWHERE.match, settings))
    ]
    prepare_algorithms(["logger=jsonl", *tiny], alone)
    for name in variants:
        overrides = (*tiny, *algorithms[name])
        whole = [word for word in overrides if not word.startswith("gpus_per_node=")]
        simulated = make_experiment(folder, *whole)
        summary = execute(instrumented(simulated))
        assert summary is not None
        write_summary(simulated.directory, summary)
        # Composing the other configuration as well would take as long as its run.
        pairs = (word.partition("=") for word in (*overrides, *machines))
        devices = [int(value) for key, _, value in pairs if key == "gpus_per_node"]
        of_machines = {"network": there["network"], "gpus_per_node": (devices or [1])[-1]}
        results[name] = simulated, from_tree({**simulated.config, **of_machines})
    return results


def launch_real(
    experiments: list[Experiment], program: str = "real_rank.py", words: Sequence[str] = ("-1",)
) -> None:
    *first, last = experiments
    configs = (str(experiment.directory / "config.yaml") for experiment in first)
    launch(last, program=(str(RANKS / program), *words, *configs))


def run_in_turn(
    experiments: Iterable[Experiment],
    launch_all: Callable[[list[Experiment]], None] = launch_real,
) -> None:
    """Run real experiments, those of as many ranks in one launch. One that fails has no summary.

    launch_all: runs experiments in turn, and raises RankFailed at the first one that fails
    """
    left = sorted(experiments, key=lambda experiment: experiment.run.ranks)
    while left:
        alike = [experiment for experiment in left if experiment.run.ranks == left[0].run.ranks]
        try:
            launch_all(alike)
            left = left[len(alike) :]
        except (RankFailed, Diverged, ConfigError) as error:
            done = sum(read_summary(experiment.directory) is not None for experiment in alike)
            failed = alike[min(done, len(alike) - 1)]
            (failed.directory / "summary.json").unlink(missing_ok=True)
            print(f"{failed.directory}: {error}")
            left = left[left.index(failed) + 1 :]


def check_same_end(simulated: Experiment, real: Experiment) -> None:
    assert distance(simulated, real) < 1e-10
    summary = read_summary(real.directory)
    assert summary["clock"] == "wall"  # type: ignore[index]
    assert said(summary) == pytest.approx(said(read_summary(simulated.directory)), abs=1e-10)


def check_budget(experiment: Experiment, steps: int) -> None:
    """An asynchronous run learns; its nodes take ``steps`` steps, and its last server as many."""
    assert read_summary(experiment.directory)["average"] > 0.8  # type: ignore[index, operator]
    taken = steps_taken(experiment)
    assert sum(taken[: experiment.run.nodes]) == steps
    assert not experiment.run.algo.servers or taken[-1] == steps


def said(summary: Mapping[str, object] | None) -> dict[str, object]:
    """Return what a summary says of the training, whatever machines it was on."""
    assert summary is not None
    return {key: value for key, value in summary.items() if key not in OF_MACHINES}
