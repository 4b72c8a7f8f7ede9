"""``sgp-run -m``: one run for each combination, through Hydra's launchers, and their comparison."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sgp_runner.cli import slurm_jobs as slurm
from sgp_runner.config.overrides import (
    TARGET,
    Setting,
    compose,
    compose_all,
    foreign_class,
    loader,
    parse,
    quoted,
    tree_of,
    typed,
)
from sgp_runner.config.plugins import named
from sgp_runner.config.schema import make_experiment
from sgp_runner.session.execution import perform, print_traceback_if_wanted, sentence_of
from sgp_runner.utils.errors import ConfigError, Diverged, Stopped
from sgp_runner.utils.launchers import launched_rank
from sgp_runner.utils.secrets import refuse_secrets
from sgp_runner.utils.signals import hearing, interruptible
from sgp_runner.utils.units import counted

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from sgp_runner.config.experiment import Experiment
    from sgp_runner.report.runs import Runs

Row = dict[str, object]


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    title: the settings in which this run differs from the others, as typed.
    """

    title: str
    experiment: Experiment

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the settings: the process of a launcher loads the plug-ins again."""
        experiment = self.experiment
        places = [plugin.where for plugin in experiment.plugins]
        return job_of, (self.title, dict(experiment.config), experiment.group, places)


def job_of(
    title: str, config: Mapping[str, object], group: str | None, places: Sequence[str]
) -> Job:
    """The job of these settings, with the plug-ins in the files and folders ``places``."""
    named([], places)
    return Job(title, make_experiment(config, group))


def sweep(settings: Sequence[Setting]) -> int:
    """Run every combination and return the exit code.

    Raises ConfigError, with nothing written, if one of them cannot work.
    """
    from hydra.core.global_hydra import GlobalHydra

    if launched_rank() is not None:
        raise ConfigError(
            "-m", "the processes of a launcher cannot share a sweep; start its runs one by one."
        )
    for_hydra, directory, jobs = plan(settings)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("results", f"cannot write to {directory}: {error.strerror}.") from error
    rows: dict[int, Row] = {}

    def task(config: DictConfig) -> Row:
        from hydra.core.hydra_config import HydraConfig

        number = HydraConfig.get().job.num
        try:
            rows[number] = run_job(jobs[number], f"[{number + 1}/{len(jobs)}]")
        except Stopped:
            slurm.requeue()
            raise
        return rows[number]

    hydra = GlobalHydra.instance().hydra
    assert hydra is not None
    print(f"{counted(len(jobs), 'run')}; the sweep is in {directory}", flush=True)
    earlier = slurm.submissions(directory)
    try:
        with interruptible():
            batches = hydra.multirun(config_name="config", task_function=task, overrides=for_hydra)
        # Jobs may have run in other processes.
        results = [result.return_value for batch in batches for result in batch]
        rows |= dict(enumerate(results))
    except (Exception, KeyboardInterrupt) as error:
        if hearing.interrupted or isinstance(error, KeyboardInterrupt):
            slurm.cancel(slurm.submissions(directory) - earlier)
            raise
        # Slurm's launcher gives up at the first lost job, while the others keep running.
        handed_over = slurm.jobs(slurm.submissions(directory) - earlier)
        if not handed_over:
            raise
        for number, job in enumerate(handed_over):
            outcome = slurm.outcome(job)
            # A job that lost a rank has failed for Slurm, but the run may have finished.
            rows[number] = row_if_done(jobs[number]) or {
                **jobs[number].experiment.facts,
                "job": jobs[number].title,
                **outcome,
            }
    finally:
        finished = [rows.get(number) or row_if_done(job) for number, job in enumerate(jobs)]
        rows_done = [row for row in finished if row is not None]
        runs = compare(rows_done, directory)
    report(runs, directory)
    return 1 if any(row.get("failed") for row in rows.values()) else 0


def plan(settings: Sequence[Setting]) -> tuple[list[str], Path, list[Job]]:
    """Return the words that make Hydra run the sweep, its directory and its checked jobs."""
    from omegaconf import OmegaConf

    for_hydra = [setting.word for setting in settings if setting.for_hydra]
    first = compose_all([*for_hydra, *combinations(settings)[0]], hydra_too=True)
    check_plugins(tree_of(first)["hydra"])
    # A preset may say what to sweep over.
    if params := OmegaConf.select(first, "hydra.sweeper.params"):
        settings = [*parse([f"{key}={value}" for key, value in params.items()]), *settings]
        for_hydra.append("hydra.sweeper.params=null")
    directory = Path(str(OmegaConf.select(first, "hydra.sweep.dir")))
    refuse_secrets(str(directory), "hydra.sweep.dir")
    swept = {setting.name for setting in settings if setting.swept}
    all_words = combinations(settings)
    jobs = []
    for number, words in enumerate(all_words, start=1):
        title = " ".join(
            typed(word) for word in words if not swept or typed(word).partition("=")[0] in swept
        )
        try:
            jobs.append(
                Job(title, make_experiment(compose([*for_hydra, *words]), group=directory.name))
            )
        except ConfigError as error:
            raise ConfigError(
                error.key, f"{error.sentence} (Job {number} of {len(all_words)}: {title})"
            ) from error
    for_hydra += [as_sweep(setting) for setting in settings if not setting.for_hydra]
    return [*for_hydra, f"hydra.sweep.dir={quoted(str(directory))}"], directory, jobs


def check_plugins(node: Mapping[str, object], key: str = "hydra") -> None:
    """Raise ConfigError for a class that is neither a launcher of Hydra nor the basic sweeper.

    Hydra would call it, whatever it is, and only after the folder of the sweep is there.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.plugins import Plugins
    from hydra.plugins.launcher import Launcher

    known: dict[str, Sequence[type]] = {
        "hydra.launcher": Plugins.instance().discover(Launcher),
        "hydra.sweeper": [BasicSweeper],
    }
    if TARGET in node and str(node[TARGET]) not in map(full_name, known.get(key, ())):
        raise foreign_class(f"{key}.{TARGET}")
    for name, inner in node.items():
        if isinstance(inner, Mapping):
            check_plugins(inner, f"{key}.{name}")


def full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def combinations(settings: Sequence[Setting]) -> list[list[str]]:
    """Return the words of each job, in the order in which Hydra runs them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    words = [as_sweep(setting) for setting in settings if not setting.for_hydra]
    overrides = OverridesParser.create(config_loader=loader()).parse_overrides(words)
    return BasicSweeper.split_arguments(overrides, None)[0]


def as_sweep(setting: Setting) -> str:
    """Write a choice inside a choice as a sweep over one value.

    Hydra first composes what is not swept, where the outer choice is still missing.
    """
    key, _, value = setting.word.partition("=")
    return (
        f"{key}=choice({value})"
        if setting.choice and "@" in key and not setting.swept
        else setting.word
    )


def run_job(job: Job, number: str) -> Row:
    """Run a job and return its row of the comparison; an error becomes a row as well."""
    print(f"\n{number} {job.title}", flush=True)
    try:
        summary = perform(replace(job.experiment, started=time.monotonic()))
    except Stopped:
        raise
    except Exception as error:
        if hearing.interrupted:  # a library has made another error of Ctrl-C
            raise
        print_traceback_if_wanted(error)
        print(f"error: {sentence_of(error)}", file=sys.stderr, flush=True)
        failed = {
            "failed": sentence_of(error).splitlines()[0],
            "diverged": isinstance(error, Diverged),
        }
        return {**job.experiment.facts, "job": job.title, **failed}
    return {**(summary or {}), "job": job.title}


def row_if_done(job: Job) -> Row | None:
    """Return the row of a job that another process finished before the sweep was interrupted."""
    from sgp_runner.recording.recorder import finished

    summary = finished(job.experiment)
    return None if summary is None else {**summary, "job": job.title}


def compare(rows: Sequence[Row], directory: Path) -> Runs | None:
    """Write ``comparison.csv``, and show the ranked tables and why runs failed.

    Returns the runs; None if there are none, or they cannot be read.
    """
    if not rows:
        return None
    path = directory / "comparison.csv"
    write_csv(path, rows)
    runs = ranked(rows)
    for row in rows:
        if row.get("failed"):
            outcome = "diverged" if row.get("diverged") else "failed"
            print(f"\n{row['job'] or row['algorithm']} {outcome}: {row['failed']}", flush=True)
    print(f"\ncomparison in {path}", flush=True)
    return runs


def ranked(rows: Sequence[Row]) -> Runs | None:
    """Show the ranked tables of the runs that left records, and return these runs."""
    from sgp_runner.report.runs import read_runs
    from sgp_runner.report.settings import settings_in
    from sgp_runner.report.terminal import show_rankings

    folders = [folder for row in rows if (folder := Path(str(row["run_dir"]))).is_dir()]
    if not folders:
        return None
    try:
        runs = read_runs(folders)
        show_rankings(settings_in(runs))
    except Exception as error:
        print_traceback_if_wanted(error)
        print(f"the runs cannot be ranked: {sentence_of(error)}", file=sys.stderr, flush=True)
        return None
    return runs


def report(runs: Runs | None, directory: Path) -> None:
    """Write the report on the runs; a failure to write it is printed, without failing the sweep."""
    from sgp_runner.report.write import report_on

    if runs is None:
        return
    try:
        made = report_on(runs, directory / "report", title=f"Sweep {directory.name}")
    except Exception as error:
        print_traceback_if_wanted(error)
        print(f"the report could not be written: {sentence_of(error)}", file=sys.stderr, flush=True)
    else:
        print(f"report in {made.page}", flush=True)


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    columns = list(dict.fromkeys(["job", "failed", *(key for row in rows for key in row)]))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
