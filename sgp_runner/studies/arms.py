"""The runs of a study: from its arms, clusters and seeds to jobs.

A run is named by its settings, so a finished run is found again and never repeated. Runs that
decide use the seeds of the study; searches and pilots use others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sgp_runner.config.command_line import condition_of, quoted
from sgp_runner.config.experiment import Experiment, flat
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.plugins.loading import named
from sgp_runner.config.run import Run
from sgp_runner.config.schema import NAME, node_at
from sgp_runner.config.size import estimated_bytes
from sgp_runner.jobs.job_pool import PoolJob, RunJob, run_all
from sgp_runner.jobs.machine import Machine
from sgp_runner.recording.recorder import read_summary
from sgp_runner.replay.retiming import Machines, folder_on, machines_in, retime
from sgp_runner.studies.arm_settings import Arm
from sgp_runner.studies.candidates import Candidate, Space, distribution
from sgp_runner.studies.study_file import RATE, StudyFile
from sgp_runner.studies.study_tasks import HOLDOUT
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import require

Role = Literal["tuning", "pilot", "deciding"]
#: Runs the jobs that are due; yields each as it ends, with a sentence if it failed.
RunAll = Callable[[Iterable[PoolJob]], Iterator[tuple[PoolJob, str | None]]]
EVALUATIONS = 20  # of a run whose curve is drawn
HELD_OUT = "holdout"  # the setting of a data set with a second validation set


@dataclass(frozen=True)
class RetimedJob:
    """A trained run, re-timed on other machines."""

    source: RunJob
    machines: Machines
    out: Path
    cores: int = 1
    memory: int = 0

    @property
    def folder(self) -> Path:
        return folder_on(self.source.folder, self.machines, self.out)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def diverged(self) -> bool:
        return self.source.diverged

    @property
    def summary(self) -> Mapping[str, object] | None:
        return read_summary(self.folder)

    @property
    def finished(self) -> bool:
        return self.diverged or self.summary is not None

    @property
    def due(self) -> bool:
        return not self.finished

    def perform(self) -> str:
        """Re-time the run; return its error message, or an empty string."""
        try:
            named(self.source.overrides)  # this process has not loaded the plug-ins
            retime(self.source.folder, self.machines, self.out)
        except ConfigError as error:
            return str(error)
        return ""


def merged(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides, keeping the last one of each key."""
    return tuple({word.partition("=")[0]: word for word in overrides}.values())


class RunMaker:
    """Factory of a study's jobs; each combination of settings is composed once.

    run_all: runs the jobs
    local: maps files named in another user's settings to local files
    jobs: the created jobs, by folder
    digests: the digest of each trained job's settings
    """

    def __init__(
        self,
        study: StudyFile,
        run_all: RunAll = run_all,
        local: Callable[[Iterable[str]], tuple[str, ...]] = tuple,
    ) -> None:
        self.study = study
        self.run_all = run_all
        self.local = local
        self.machine = Machine(None)
        self.composed: dict[tuple[str, ...], Experiment] = {}
        self.jobs: dict[Path, RunJob | RetimedJob] = {}
        self.digests: dict[Path, str] = {}

    def overrides(
        self, arm: Arm, candidate: Sequence[str] = (), cluster: int = 0, role: Role = "deciding"
    ) -> tuple[str, ...]:
        """Return the settings of a run except its seed, as overrides."""
        run = self.run(arm, cluster)
        plain = self.plain(arm, cluster)
        keys = {word.partition("=")[0] for word in plain}
        if role == "tuning" and self.study.tune.by is None:
            evaluation = [f"eval_every={run.epochs:g}"]
        else:
            evaluation = (
                [] if "eval_every" in keys else [f"eval_every={run.epochs / EVALUATIONS:g}"]
            )
        if role == "tuning" and has_holdout(run):
            evaluation.append(f"data.{HELD_OUT}={HOLDOUT:g}")
        return merged([*plain, *candidate, *evaluation])

    def plain(self, arm: Arm, cluster: int = 0) -> tuple[str, ...]:
        """Return the settings in the file for an arm on a cluster."""
        study = self.study
        machines = study.clusters[cluster].overrides
        return merged(["eval_workers=false", *study.common, *machines, *arm.overrides])

    def experiment(self, overrides: tuple[str, ...], arm: str = "") -> Experiment:
        """Return the experiment with these settings. Raises a ConfigError that names the arm."""
        if overrides not in self.composed:
            try:
                folder = f"results={quoted(str(self.study.folder))}"
                self.composed[overrides] = experiment_of(
                    [*self.local(overrides), folder, "logger=jsonl"]
                )
            except ConfigError as error:
                raise ConfigError(error.key, f"{error.sentence} (arm {arm})") from error
        return self.composed[overrides]

    def job(
        self,
        arm: Arm,
        candidate: Sequence[str],
        seed: int,
        cluster: int = 0,
        role: Role = "deciding",
    ) -> RunJob:
        """Return the job of one run."""
        overrides = self.overrides(arm, candidate, cluster, role)
        if any("${" in word for word in overrides):  # a value may depend on the seed
            seeded = self.experiment((*overrides, f"seed={seed}"), arm.name)
        else:
            seeded = self.experiment(overrides, arm.name).with_values(seed=seed)
        job = RunJob(
            seeded.name,
            (*self.local(overrides), f"seed={seed}"),
            self.study.folder,
            self.machine.cores_for(seeded.run),
            estimated_bytes(seeded.run),
            seeded,
        )
        self.jobs[job.folder], self.digests[job.folder] = job, seeded.digest
        return job

    def run(self, arm: Arm, cluster: int = 0) -> Run:
        """Return the run of an arm with the settings in the file."""
        return self.experiment(self.plain(arm, cluster), arm.name).run

    @cached_property
    def machines(self) -> Mapping[int, Machines]:
        """The clusters on which the runs of the first cluster can be re-timed."""
        return {
            number: machines_in(
                self.local(
                    merged(
                        word
                        for word in (*self.study.common, *cluster.overrides)
                        if word.partition("=")[0].partition(".")[0] == "cluster"
                    )
                )
            )[0]
            for number, cluster in enumerate(self.study.clusters)
            if number
        }

    def retimed(self, source: RunJob, cluster: int) -> RetimedJob:
        job = RetimedJob(source, self.machines[cluster], self.study.folder / "retimed")
        self.jobs[job.folder] = job
        return job

    def space(self, arm: Arm) -> Space:
        """Return the candidates of an arm. Raises ConfigError if it sets a searched key itself."""
        if arm.of:
            return Space()
        tune, run = self.study.tune, self.run(arm)
        set_here = {word.partition("=")[0] for word in arm.overrides}
        lists = {
            key: values for key, values in (tune.lists or {}).items() if self.applies(key, arm)
        }
        for key in [*([RATE] if tune.ladder else []), *lists]:
            if key in set_here:
                raise ConfigError(
                    f"arms.{arm.name}",
                    f"it sets {key}, which is searched for all arms: leave one of them out.",
                )
        if tune.rule == "tpe":
            require("tune.rule", "optuna", "optuna")
            spread = {key: distribution(key, ",".join(values)) for key, values in lists.items()}
            example = tuple(f"{key}={low}" for key, (low, _) in spread.items())
            return Space(
                combinations=(example,), ranges={key: values for key, (_, values) in spread.items()}
            )
        combinations = tuple(
            itertools.product(
                *([f"{key}={value}" for value in values] for key, values in lists.items())
            )
        )
        if not tune.ladder:
            return Space(combinations=combinations)
        first = tune.first or (run.optim.lr / 2, run.optim.lr * 2)
        return Space(RATE, first, combinations)

    def applies(self, key: str, arm: Arm) -> bool:
        """Return whether a key such as ``algo.osgp.tau`` applies to the choices of an arm."""
        condition = condition_of(key)
        if condition is None:
            return True
        part, choice, _ = condition
        config: Any = self.experiment(self.plain(arm), arm.name).config
        node = node_at(config, part)
        return isinstance(node, dict) and node.get(NAME) == choice


def unnamed_differences(maker: RunMaker) -> str:
    """Return a sentence about settings whose defaults differ between arms; empty if none do.

    An arm that sets such a key itself, or the group to which it belongs, is left out.
    """
    values: dict[str, dict[str, list[str]]] = {}  # key -> value -> arms
    for arm in maker.study.arms:
        named = tuple(word.partition("=")[0] for word in arm.overrides)
        for key, value in flat(maker.experiment(maker.plain(arm), arm.name).settings):
            if not any(f"{key}.".startswith(f"{n}.") for n in named):
                values.setdefault(key, {}).setdefault(str(value), []).append(arm.name)
    found = [
        f"{key}: " + ", ".join(f"{value} ({', '.join(names)})" for value, names in by_value.items())
        for key, by_value in values.items()
        if len(by_value) > 1
    ]
    return f"Arms also differ in {'; '.join(found)}." if found else ""


def has_holdout(run: Run) -> bool:
    """Return whether searches can validate on samples that the runs that decide do not use."""
    return any(field.name == HELD_OUT for field in fields(run.data))  # type: ignore[arg-type]


def check_arms(maker: RunMaker) -> dict[str, Space]:
    """Compose every arm on every cluster and return the search space of each arm.

    Raises ConfigError for invalid settings, and for a budget that is too small.
    """
    study = maker.study
    runs = [maker.run(arm, number) for arm in study.arms for number in range(len(study.clusters))]
    same: dict[str, str] = {}
    for arm in study.arms:
        digest = maker.experiment(maker.plain(arm), arm.name).digest
        if (other := same.setdefault(digest, arm.name)) not in (arm.name, arm.of):
            raise ConfigError(
                f"arms.{arm.name}", f"its settings are those of {other}: change or remove it."
            )
    clocks = {run.network.clock for run in runs}
    if len(clocks) > 1:
        raise ConfigError(
            "network", "simulated and measured times cannot be compared: give all arms one network."
        )
    if clocks == {"wall"} and any(cluster.overrides for cluster in study.clusters):
        raise ConfigError("clusters", "the runs are real processes here; leave clusters out.")
    for key in study.tune.lists or {}:
        if not any(maker.applies(key, arm) for arm in study.arms):
            raise ConfigError(f"tune.{key}", "no arm has this setting; leave it out.")
    spaces = {arm.name: maker.space(arm) for arm in study.arms}
    for name, space in spaces.items():
        if space.least_budget > study.tune.budget:
            raise ConfigError(
                "tune.budget",
                f"{study.tune.budget} runs are fewer than the {space.least_budget} that the search "
                f"of {name} needs: write budget: {max_budget(spaces)} or more.",
            )
        for others in space.combinations:
            value = space.first[0] if space.first else None
            overrides = space.overrides(Candidate(value, others))
            maker.experiment(maker.overrides(study.arm(name), overrides, role="tuning"), name)
    return spaces


def max_budget(spaces: Mapping[str, Space]) -> int:
    return max(space.least_budget for space in spaces.values())
