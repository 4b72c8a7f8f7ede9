"""``sgp-run -m``: a run for each combination of values, and a comparison.

The runs are on this machine or go through a launcher of Hydra."""

from __future__ import annotations

import csv
import math
import os
import re
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from sgp_runner.assembly.execution import print_traceback_if_wanted, sentence_of
from sgp_runner.cli.jobs import Row, SweepJob, describe_settings, run_job
from sgp_runner.config.choices import PRESET, class_of, group_of
from sgp_runner.config.command_line import (
    TARGET,
    Setting,
    choices_named,
    condition_of,
    foreign_class,
    loader,
    parse,
    quoted,
    refuse_ranges,
    refuse_several,
    unmet,
)
from sgp_runner.config.composed import tree_of
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.overrides import compose, compose_all, narrow
from sgp_runner.config.run import Run
from sgp_runner.config.schema import NOT_A_SETTING, fields_of
from sgp_runner.jobs import slurm_jobs as slurm
from sgp_runner.utils.errors import ConfigError, Stopped
from sgp_runner.utils.launchers import launched_rank
from sgp_runner.utils.messages import logger
from sgp_runner.utils.secrets import refuse_secrets
from sgp_runner.utils.signals import interruptible, signal_state
from sgp_runner.utils.units import counted

if TYPE_CHECKING:
    from sgp_runner.report.read.runs import Runs

PARAMS = "hydra.sweeper.params"
SEARCH = "sgp_runner.cli.search.Search"
LOCAL = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"

MAX_RUNS = 10_000  # limit of a sweep
ANNOUNCED_RUNS = 100  # from here on, the check of the settings is announced


@dataclass(frozen=True)
class Plan:
    """A sweep whose settings have been checked.

    for_hydra: overrides for Hydra's launcher, which starts one job for each value of ``number``
    directory: folder of the sweep
    jobs: runs of the sweep, in order
    launcher: class of the launcher
    variables: environment variables of the jobs
    """

    for_hydra: Sequence[str]
    directory: Path
    jobs: Sequence[SweepJob]
    launcher: str
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
    here = planned.launcher == LOCAL
    if asked is not None and not here:
        raise ConfigError(
            "jobs", "hydra/launcher starts the runs elsewhere; leave one of them out."
        )
    make_folder(directory)
    os.environ.update(planned.variables if here else {})
    needs = [job.experiment.run for job in jobs]
    outcomes = run_here(jobs, needs, directory, asked) if here else launch(planned)
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
    jobs: Iterable[SweepJob], runs: Sequence[Run], directory: Path, asked: int | None
) -> Generator[tuple[int, Row]]:
    """Run the jobs on this machine and yield the number and the row of each as it ends.

    runs: the run of each job, from which cores and memory are estimated
    """
    from sgp_runner.cli.local_jobs import imports_of, side_by_side
    from sgp_runner.jobs.machine import Machine

    machine = Machine(asked)
    most, total = machine.at_once(runs), len(runs)
    at_once = f", {most} at a time" if most > 1 else ""
    print(f"{counted(total, 'run')}{at_once}; the sweep is in {directory}", flush=True)
    if most == 1:
        for number, job in enumerate(jobs):
            yield number, run_job(job, f"[{number + 1}/{total}]")
    else:
        yield from side_by_side(jobs, total, machine, most, directory / "logs", imports_of(runs))


def launch(planned: Plan) -> Generator[tuple[int, Row]]:
    """Run the jobs through a launcher of Hydra and yield the number and the row of each."""
    directory, jobs = planned.directory, planned.jobs

    def task(config: DictConfig) -> Row:
        number = HydraConfig.get().job.num
        try:
            return run_job(jobs[number], f"[{number + 1}/{len(jobs)}]")
        except Stopped:
            slurm.requeue()
            raise

    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    print(f"{counted(len(jobs), 'run')}; the sweep is in {directory}", flush=True)
    earlier = slurm.submissions(directory)
    try:
        batches = hydra.multirun(
            config_name="config", task_function=task, overrides=[*planned.for_hydra]
        )
        yield from enumerate(result.return_value for batch in batches for result in batch)
    except (Exception, KeyboardInterrupt) as error:
        if signal_state.interrupted or isinstance(error, KeyboardInterrupt):
            slurm.cancel(slurm.submissions(directory) - earlier)
            raise
        # Slurm's launcher gives up at the first lost job, while the others keep running.
        handed_over = slurm.jobs(slurm.submissions(directory) - earlier)
        if not handed_over and isinstance(error, RuntimeError) and "Slurm" in planned.launcher:
            reason = re.sub(r"(?s).*^sbatch: \w+: ", "", str(error).strip(), flags=re.M)
            raise slurm.NotSubmitted(f"Slurm did not take the jobs ({reason}).") from error
        if not handed_over:
            raise
        for number, job in enumerate(handed_over):
            outcome = slurm.outcome(job)
            # A job that lost a rank has failed for Slurm, but the run may have finished.
            facts = jobs[number].row(jobs[number].experiment.facts)
            yield number, jobs[number].row_if_done() or {**facts, **outcome}


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
            raise ConfigError("jobs", "it is the number of runs of a sweep at a time; add -m.")
        if setting.name in launchers:
            raise ConfigError(setting.name, "it starts the runs of a sweep; add -m.")


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
    names = swept_names(settings)
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
    numbers = f"+number=choice({','.join(map(str, range(len(jobs))))})"
    lines = [setting.line for setting in runs[0]]
    return Plan(
        [*lines, f"hydra.sweep.dir={quoted(str(directory))}", numbers],
        directory,
        jobs,
        str(OmegaConf.select(composed, f"hydra.launcher.{TARGET}")),
        {str(key): str(value) for key, value in composed.hydra.job.env_set.items()},
    )


def of_other_jobs(key: str, settings: Sequence[Setting]) -> str:
    """Return how to write the setting ``key`` for those jobs that have it; empty if none has it."""
    part, _, name = key.rpartition(".")
    swept = [setting for setting in settings if setting.name == part and setting.swept]
    for choice in (choice for setting in swept for choice in choices_named(setting.override) or ()):
        if condition_of(full_key := f"{part}.{choice}.{name}") is None:
            continue
        cls = class_of(group_of(part) or "", choice)
        if cls is not None and name in fields_of(cls, part):
            return f" For {part}={choice} alone, write {full_key}=..."
    return ""


def swept_names(settings: Sequence[Setting]) -> set[str]:
    """Return the keys with several values; ``algo.osgp.tau`` also yields ``algo.tau``."""
    names = {setting.name for setting in settings if setting.swept}
    return names | {condition[2] for name in names if (condition := condition_of(name))}


def check_plugins(node: Mapping[str, object], key: str = "hydra") -> None:
    """Raise ConfigError for a class that is neither a launcher of Hydra nor a known sweeper.

    Without this check Hydra would call any class, after creating the folder of the sweep.
    """
    classes: dict[str, Sequence[type]] = {
        "hydra.launcher": Plugins.instance().discover(Launcher),
        "hydra.sweeper": [BasicSweeper],
    }
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in classes.get(key, ())]
    names += [SEARCH] if key == "hydra.sweeper" else []
    if TARGET in node and str(node[TARGET]) not in names:
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
            raise unmet(setting, "no run of this sweep has it")
    runs: dict[tuple[str, ...], list[Setting]] = {}
    for active, _ in divided:
        runs.setdefault(tuple(setting.line for setting in active), active)
    return list(runs.values())


def compare(rows: Sequence[Row], directory: Path, target: float | None = None) -> Runs | None:
    """Write ``comparison.csv``, and print ranked tables and the errors of failed runs.

    target: quality for which the times to reach it are compared; None: one is chosen

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
            show_rankings(settings_in(runs), target)
    for row in rows:
        if row.get("failed"):
            outcome = "diverged" if row.get("diverged") else "failed"
            print(f"\n{row['job'] or row['algorithm']} {outcome}: {row['failed']}", flush=True)
    print(f"\ncomparison in {path}", flush=True)
    return runs


def report(runs: Runs | None, directory: Path, target: float | None = None) -> None:
    """Write the report on the runs; print an error instead of failing the sweep."""
    from sgp_runner.report.render.write import report_on

    if runs is None:
        return
    with printed_errors("the report could not be written"):
        result = report_on(runs, directory / "report", target)
        print(f"report in {result.page}", flush=True)


@contextmanager
def printed_errors(what: str) -> Iterator[None]:
    """Catch an error and print it in a sentence that begins with ``what``."""
    try:
        yield
    except Exception as error:
        print_traceback_if_wanted(error)
        print(f"{what}: {sentence_of(error)}", file=sys.stderr, flush=True)
