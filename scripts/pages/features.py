"""Table of the features that each algorithm supports, from the checks before a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from pages.settings import table
from sgp_runner.config.experiment import Experiment

SMALL = ("model=mlp", "nodes=4", "epochs=0.2")
# Column -> settings that switch the feature on.
FEATURES: Mapping[str, tuple[str, ...]] = {
    "resume": ("checkpoint.every_steps=10",),
    "faults": ("faults=crash",),
    "record and replay": ("network=gloo", "record=true"),
    "`on_failure=continue`": ("on_failure=continue",),
    "re-timing": (),
    "`gpus_per_node`": ("network=gloo", "gpus_per_node=2"),
    "gloo": ("network=gloo",),
    "NCCL": ("network=nccl",),
    "MPI": ("network=mpi",),
}


def features(_: str) -> str:
    """Return a row per algorithm, with the features that not all algorithms support."""
    from sgp_runner.config.choices import groups

    answers = {
        feature: {algo: answer(algo, feature) for algo in groups()["algo"]} for feature in FEATURES
    }
    partly = [feature for feature in FEATURES if {*answers[feature].values()} != {"yes"}]
    rows = [
        (
            f"[`{algo}`]({algo}.md)",
            *("yes" if answers[feature][algo] == "yes" else "no" for feature in partly),
        )
        for algo in groups()["algo"]
    ]
    always = ", ".join(feature for feature in FEATURES if feature not in partly)
    return f"All algorithms: {always}.\n\n{table(rows, ('`algo=`', *partly))}"


def answer(algo: str, feature: str) -> str:
    """Return ``yes``, or the error that rejects the feature for ``algo`` with its defaults."""
    from sgp_runner.assembly.dry_run import verify_calls
    from sgp_runner.config.overrides import experiment_of
    from sgp_runner.utils.errors import ConfigError

    try:
        experiment = experiment_of([f"algo={algo}", *SMALL, *FEATURES[feature]])
        if feature == "re-timing":
            check_retiming(experiment)
        else:
            verify_calls(experiment.run)
    except ConfigError as error:
        return f"`{error.key}`: {error.sentence}"
    return "yes"


def check_retiming(experiment: Experiment) -> None:
    """Check that a run of this experiment could be re-timed after training."""
    from sgp_runner.replay.retiming import check_decisions, replay

    folder = Path("the run")
    check_decisions(experiment.run, folder)
    with TemporaryDirectory() as scratch:
        replay(experiment, folder, Path(scratch))
