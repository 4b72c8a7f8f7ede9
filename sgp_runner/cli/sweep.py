"""``sgp-run -m``: a run for each combination of values, and a comparison.

The runs are processes on this machine or Slurm jobs."""

from __future__ import annotations

import csv
import math
import os
import sys
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from sgp_runner.assembly.execution import print_traceback_if_wanted, sentence_of
from sgp_runner.config.choices import PRESET, class_of, group_of
from sgp_runner.config.command_line import (
    TARGET,
    Setting,
    choices_named,
    condition_of,
    foreign_class,
    loader,
    parse,
    refuse_ranges,
    refuse_several,
    unmet,
)
from sgp_runner.config.composed import tree_of
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.overrides import compose, compose_all, narrow
from sgp_runner.config.schema import NOT_A_SETTING, fields_of
from sgp_runner.jobs import slurm_jobs
from sgp_runner.jobs.sweep_job import Row, SweepJob
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import require
from sgp_runner.utils.launchers import launched_rank
from sgp_runner.utils.messages import logger
from sgp_runner.utils.secrets import refuse_secrets
from sgp_runner.utils.signals import interruptible
from sgp_runner.utils.units import counted

if TYPE_CHECKING:
    from sgp_runner.report.read.runs import Runs

PARAMS = "hydra.sweeper.params"
LOCAL = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
CLASSES = {  # those that may stand in Hydra's settings
    "hydra.launcher": (LOCAL, slurm_jobs.LAUNCHER),
    "hydra.sweeper": ("hydra._internal.core_plugins.basic_sweeper.BasicSweeper",),
}

MAX_RUNS = 10_000  # limit of a sweep
ANNOUNCED_RUNS = 100  # from here on, the check of the settings is announced


@dataclass(frozen=True)
class Plan:
    """A sweep whose settings have been checked.

    directory: folder of the sweep
    jobs: runs of the sweep, in order
    launcher: settings of the launcher
    variables: environment variables of the jobs
    """

    directory: Path
    jobs: Sequence[SweepJob]
    launcher: Mapping[str, Any]
    variables: Mapping[str, str]


def sweep(settings: Sequence[Setting]) -> int:
    """Run every combination and return the exit code.

    Raises ConfigError, before anything is written, if a combination cannot work.
    """
    if launched_rank() is not None:
        raise ConfigError(
            "-m", "the processes of a launcher cannot share a sweep; start its runs one by one."
        )
    asked, settings = jobs_at_once(settings)
    refuse_ranges(settings)
    planned = plan(settings)
    directory, jobs = planned.directory, planned.jobs
    here = planned.launcher[TARGET] == LOCAL
    if asked is not None and not here:
        raise ConfigError(
            "jobs", "jobs= applies to runs on this machine; omit jobs= or hydra/launcher=."
        )
    make_folder(directory)
    os.environ.update(planned.variables if here else {})
    outcomes = (
        run_here(jobs, directory, asked)
        if here
        else slurm_jobs.launch(jobs, directory, planned.launcher, planned.variables)
    )
    rows: dict[int, Row] = {}
    try:
        with interruptible(), closing(outcomes):
            rows.update(outcomes)
    finally:
        finished = [rows.get(number) or job.row_if_done() for number, job in enumerate(jobs)]
        runs = compare([row for row in finished if row is not None], directory)
    report(runs, directory)
    return 1 if any(row.get("failed") for row in rows.values()) else 0


def make_folder(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("results", f"cannot write to {directory}: {error.strerror}.") from error


def compose_first(settings: Sequence[Setting]) -> tuple[DictConfig, Path]:
    """Return the configuration of the first run, with Hydra's settings, and the sweep's folder.

    Raises ConfigError if Hydra would call a class that is not a launcher or a known sweeper.
    """
    composed = compose_all(settings, hydra_too=True)
    check_plugins(tree_of(composed)["hydra"])
    directory = str(composed.hydra.sweep.dir)
    refuse_secrets(directory, "hydra.sweep.dir")
    return composed, Path(directory)


def launcher_of(composed: DictConfig) -> Mapping[str, Any]:
    """Return the settings of the launcher. Raises ConfigError if its package is not installed."""
    launcher = tree_of(composed.hydra.launcher, resolve=True)
    if launcher[TARGET] == slurm_jobs.LAUNCHER:
        require("hydra/launcher", "slurm", "submitit")
    return launcher


def jobs_at_once(settings: Sequence[Setting]) -> tuple[int | None, list[Setting]]:
    """Return the number of runs at a time (``jobs=``, or None), and all other settings."""
    asked: int | None = None
    for setting in settings:
        if setting.name == "jobs":
            value = None if setting.swept else setting.override.value()
            if type(value) is not int or value < 1:
                raise ConfigError(
                    "jobs", f"'{setting.text}' is not a number of runs, such as jobs=2."
                )
            asked = value
    return asked, [setting for setting in settings if setting.name != "jobs"]


def run_here(
    jobs: Sequence[SweepJob], directory: Path, asked: int | None
) -> Generator[tuple[int, Row]]:
    """Run the jobs on this machine and yield the number and the row of each as it finishes."""
    from sgp_runner.jobs.machine import Machine
    from sgp_runner.jobs.side_by_side import side_by_side

    machine, total = Machine(asked), len(jobs)
    most = machine.at_once([job.experiment.run for job in jobs])
    at_once = f", {most} at a time" if most > 1 else ""
    print(f"{counted(total, 'run')}{at_once}; the sweep is in {directory}", flush=True)
    if most == 1:
        for number, job in enumerate(jobs):
            yield number, job.perform(f"[{number + 1}/{total}]")
    else:
        yield from side_by_side(jobs, machine, most, directory / "logs")


def is_sweep(settings: Sequence[Setting]) -> bool:
    """Return whether the settings choose a preset that is a sweep."""
    if all(setting.name != PRESET for setting in settings):
        return False
    plain = [setting for setting in settings if condition_of(setting.name) is None]
    composed = [setting for setting in plain if setting.composed and not setting.swept]
    try:
        return bool(OmegaConf.select(compose_all(composed, hydra_too=True), PARAMS))
    except ConfigError:  # the run reports the error
        return False


def refuse_sweep(settings: Sequence[Setting], *launchers: str) -> None:
    """Raise ConfigError for settings that only a sweep can have.

    launchers: Hydra's groups that determine how a sweep starts its runs
    """
    refuse_several(settings, "; add -m to run all of them.")
    for setting in settings:
        if setting.name == "jobs":
            raise ConfigError("jobs", "only a sweep runs several jobs at a time; add -m.")
        if setting.name in launchers:
            raise ConfigError(setting.name, "this setting is for sweeps only; add -m.")


def plan(settings: Sequence[Setting]) -> Plan:
    """Compose and check all jobs of a sweep."""
    for_hydra = [setting.line for setting in settings if setting.for_hydra]
    first, _ = narrow(parse([*for_hydra, *combinations(settings)[0]]))
    composed, directory = compose_first(first)
    asked = {setting.name for setting in settings}
    # A preset may have several values, which the command line overrides.
    if params := OmegaConf.select(composed, PARAMS):
        of_preset = parse([f"{key}={value}" for key, value in params.items()])
        settings = [*(entry for entry in of_preset if entry.name not in asked), *settings]
        for_hydra.append(f"{PARAMS}=null")
    names = {setting.name for setting in settings if setting.swept}
    # For algo.osgp.tau, a job has algo.tau.
    names |= {condition[2] for name in names if (condition := condition_of(name))}
    combined = combinations(settings)
    announce(len(combined))
    runs = narrowed([parse([*for_hydra, *lines]) for lines in combined], asked)
    jobs = []
    for number, active in enumerate(runs, start=1):
        visible = names or {setting.name for setting in active if not setting.for_hydra}
        title = describe_settings(active, visible)
        try:
            jobs.append(SweepJob(title, make_experiment(compose(active), group=directory.name)))
        except ConfigError as error:
            hint = of_other_jobs(error.key, settings) if NOT_A_SETTING in error.sentence else ""
            where = f"(Job {number} of {len(runs)}: {title})"
            raise ConfigError(error.key, f"{error.sentence}{hint} {where}") from error
    variables = {str(key): str(value) for key, value in composed.hydra.job.env_set.items()}
    return Plan(directory, jobs, launcher_of(composed), variables)


def of_other_jobs(key: str, settings: Sequence[Setting]) -> str:
    """Return how to write ``key`` for only the jobs with this setting; empty if none has it."""
    part, _, name = key.rpartition(".")
    swept = [setting for setting in settings if setting.name == part and setting.swept]
    for choice in (choice for setting in swept for choice in choices_named(setting.override) or ()):
        if condition_of(full_key := f"{part}.{choice}.{name}") is None:
            continue
        cls = class_of(group_of(part) or "", choice)
        if cls is not None and name in fields_of(cls, part):
            return f" For {part}={choice} alone, write {full_key}=..."
    return ""


def describe_settings(settings: Sequence[Setting], names: Collection[str]) -> str:
    """Return those settings whose names are in ``names``, as a user types them."""
    return " ".join(setting.typed for setting in settings if setting.name in names)


def check_plugins(node: Mapping[str, object], key: str = "hydra") -> None:
    """Raise ConfigError for a class that is neither a known launcher nor the sweeper."""
    if TARGET in node and node[TARGET] not in CLASSES.get(key, ()):
        raise foreign_class(f"{key}.{TARGET}")
    for name, inner in node.items():
        if isinstance(inner, Mapping):
            check_plugins(inner, f"{key}.{name}")


def combinations(settings: Sequence[Setting]) -> list[list[str]]:
    """Return the overrides of each job, in the order in which Hydra runs them.

    Raises ConfigError if there are too many combinations.
    """
    check_number({setting.name: setting.number for setting in settings})
    lines = [setting.line for setting in settings if not setting.for_hydra]
    overrides = OverridesParser.create(config_loader=loader()).parse_overrides(lines)
    return BasicSweeper.split_arguments(overrides, None)[0]


def check_number(values: Mapping[str, int]) -> None:
    """Raise ConfigError if a sweep has too many combinations; ``values`` are numbers by key."""
    runs = math.prod(values.values())
    if runs > MAX_RUNS:
        raise ConfigError(
            max(values, key=values.__getitem__),
            f"a sweep of {runs:,} runs is too large: use at most {MAX_RUNS:,} combinations.",
        )


def announce(runs: int) -> None:
    if runs >= ANNOUNCED_RUNS:
        logger.info(f"{runs:,} runs; their settings are checked first")


def narrowed(combined: Sequence[Sequence[Setting]], asked: Collection[str]) -> list[list[Setting]]:
    """Return, for each job, the settings that apply to it; duplicate jobs are removed.

    Raises ConfigError if a setting on the command line (``asked``), such as ``algo.osgp.tau=1``,
    applies to no job. A setting of a preset may apply to no job.
    """
    divided = [narrow(settings) for settings in combined]
    names = [{setting.name for setting in left_out} for _, left_out in divided]
    for setting in divided[0][1]:
        if setting.name in asked and all(setting.name in left_out for left_out in names):
            raise unmet(setting, "no run of this sweep has this choice")
    runs: dict[tuple[str, ...], list[Setting]] = {}
    for active, _ in divided:
        runs.setdefault(tuple(setting.line for setting in active), active)
    return list(runs.values())


def compare(rows: Sequence[Row], directory: Path) -> Runs | None:
    """Write ``comparison.csv``, and print ranked tables and the errors of failed runs.

    Returns the runs that have records; None if no run has records, or if they cannot be read.
    """
    from sgp_runner.report.read.run_groups import settings_in
    from sgp_runner.report.read.runs import read_runs
    from sgp_runner.report.render.terminal import show_rankings

    if not rows:
        return None
    path, runs = directory / "comparison.csv", None
    columns = list(dict.fromkeys(["job", "failed", *(key for row in rows for key in row)]))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    if folders := [folder for row in rows if (folder := Path(str(row["run_dir"]))).is_dir()]:
        with printed_errors("the runs cannot be ranked"):
            runs = read_runs(folders)
            show_rankings(settings_in(runs))
    for row in rows:
        if row.get("failed"):
            outcome = "diverged" if row.get("diverged") else "failed"
            print(f"\n{row['job'] or row['algorithm']} {outcome}: {row['failed']}", flush=True)
    print(f"\ncomparison in {path}", flush=True)
    return runs


def report(runs: Runs | None, directory: Path) -> None:
    """Write the report on the runs; print an error instead of failing the sweep."""
    from sgp_runner.report.render.write import report_on

    if runs is None:
        return
    with printed_errors("the report could not be written"):
        result = report_on(runs, directory / "report")
        print(f"report in {result.page}", flush=True)


@contextmanager
def printed_errors(what: str) -> Iterator[None]:
    """Catch an error and print it in a sentence that begins with ``what``."""
    try:
        yield
    except Exception as error:
        print_traceback_if_wanted(error)
        print(f"{what}: {sentence_of(error)}", file=sys.stderr, flush=True)
