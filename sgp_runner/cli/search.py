"""``sgp-run -m hydra/sweeper=optuna``: a sweep in which Optuna proposes one run at a time.

The study is a file in the folder of the sweep. The same command with the same ``hydra.sweep.dir``
continues it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.override_parser.types import IntervalSweep
from omegaconf import OmegaConf

from sgp_runner.cli.jobs import Row, SweepJob, describe_settings
from sgp_runner.cli.sweep import (
    LOCAL,
    compare,
    compose_first,
    jobs_at_once,
    make_folder,
    report,
    run_here,
    swept_names,
)
from sgp_runner.config.check import build, check_part
from sgp_runner.config.command_line import TARGET, Setting, parse
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.overrides import compose, narrow
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.extras import require
from sgp_runner.utils.signals import interruptible

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

    from sgp_runner.config.run import Run
    from sgp_runner.report.read.runs import Runs

FILE = "optuna.log"
KEY = "hydra.sweeper"
EXAMPLE = "'optim.lr=tag(log,interval(0.01,1))'"


@dataclass(frozen=True)
class Search:
    """The settings below ``hydra.sweeper`` (see ``configs/hydra/sweeper/optuna.yaml``)."""

    trials: int
    objective: Literal["loss", "accuracy", "time"]
    target: float | None
    seed: int

    def __post_init__(self) -> None:
        check_least(1, KEY, self, "trials")
        check_least(0, KEY, self, "seed")
        if (self.objective == "time") != isinstance(self.target, float):
            raise ConfigError(
                f"{KEY}.target", "objective=time, and no other, needs an accuracy such as 0.95."
            )

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        return "maximize" if self.objective == "accuracy" else "minimize"

    def value(self, row: Row) -> float | None:
        """Return the objective of a run: the worst value if the run diverged, None if it failed."""
        worst = -math.inf if self.objective == "accuracy" else math.inf
        if row.get("failed"):
            return worst if row.get("diverged") else None
        if self.objective == "time":
            return seconds_to(float(self.target or 0.0), Path(str(row["run_dir"])))
        if self.objective == "accuracy" and row["metric"] != "accuracy":
            raise ConfigError(f"{KEY}.objective", "the runs have no accuracy; use loss.")
        return float(str(row["average_loss" if self.objective == "loss" else "average"]))


def seconds_to(target: float, run_dir: Path) -> float:
    """Return the seconds until a run reaches ``target``, as a ranking does."""
    from sgp_runner.report.read.run_groups import settings_in
    from sgp_runner.report.read.runs import read_runs

    (setting,) = settings_in(read_runs([run_dir]))
    return min(setting.times_to(target), default=math.inf)


def check_evaluations(plan: Search, run: Run) -> None:
    """Raise ConfigError if the evaluations of a run are too few for the time to a target."""
    from sgp_runner.report.rank.ranking import MIN_EVALUATIONS

    times = round(run.epochs / run.eval_every)
    if plan.objective == "time" and times <= MIN_EVALUATIONS:
        raise ConfigError(
            f"{KEY}.objective",
            f"a time to a target needs {MIN_EVALUATIONS} evaluations before it, and these runs "
            f"have {times} in all: write eval_every={run.epochs / 20:g}, or objective=accuracy.",
        )


def first_in_ranking(rows: Sequence[Row], runs: Runs | None, target: float | None) -> str:
    """Return the first run in the ranking by time to ``target``, with its time or its quality.

    Empty without a target, or if there are several rankings, for example of two models.
    """
    if runs is None or target is None:
        return ""
    from sgp_runner.report.rank.ranking import rankings
    from sgp_runner.report.rank.tables import quality_text
    from sgp_runner.report.read.run_groups import settings_in

    ranking, *others = rankings(settings_in(runs), target)
    if others:
        return ""
    first = ranking.rows[0]
    folders = set(first.setting.runs["folder"])
    title = next(str(row["job"]) for row in rows if str(row["run_dir"]) in folders)
    quality = quality_text(first.setting.mean("quality"), ranking.ranked_by)
    return f"{title}  {ranking.ranked_by} {quality if ranking.by_quality else f'{first.time:.6g}'}"


def searches(settings: Sequence[Setting]) -> bool:
    """Return whether the command line chooses Optuna as the sweeper."""
    return any(setting.name == "hydra/sweeper" and setting.text == "optuna" for setting in settings)


def search(settings: Sequence[Setting]) -> int:
    """Run the trials, print the best and return the exit code.

    Raises ConfigError, before anything is written, if the first trial cannot work.
    """
    require("hydra/sweeper", "optuna", "optuna")
    asked, settings = jobs_at_once(settings)
    composed, directory = compose_first(first_trial(settings))
    for key, value in (OmegaConf.select(composed, f"{KEY}.params") or {}).items():
        settings = [*parse([f"{key}={value}"]), *settings]
    fixed = [setting.line for setting in settings if not setting.swept]
    swept = {setting.key: setting for setting in settings if setting.swept}
    if not swept:
        raise ConfigError("hydra/sweeper", f"give a setting a range to search, such as {EXAMPLE}.")
    if OmegaConf.select(composed, f"hydra.launcher.{TARGET}") != LOCAL:
        raise ConfigError("hydra/launcher", "hydra/sweeper=optuna runs trials here; leave it out.")
    options = {
        field.name: composed.hydra.sweeper[field.name] for field in dataclasses.fields(Search)
    }
    plan = build(check_part(options, KEY, Search, {}), KEY)
    assert isinstance(plan, Search)
    names = swept_names(settings)

    def job(values: Mapping[str, Any]) -> SweepJob:
        proposed = [
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in values.items()
        ]
        active = narrow(parse([*fixed, *proposed]))[0]
        experiment = make_experiment(compose(active), group=directory.name)
        return SweepJob(describe_settings(active, names), experiment)

    example = job({key: lowest(setting) for key, setting in swept.items()})
    check_evaluations(plan, example.experiment.run)
    space = {key: distribution(setting) for key, setting in swept.items()}
    study = open_study(directory, plan, space)
    trials: list[Trial | None] = []

    def jobs() -> Iterator[SweepJob]:
        for done in finished(study):
            trials.append(None)
            yield job(done.params)
        while len(trials) < plan.trials:
            trial = study.ask(space)
            trials.append(trial)
            yield job(trial.params)

    rows: dict[int, Row] = {}
    runs = [example.experiment.run] * plan.trials
    outcomes = run_here(jobs(), runs, directory, asked)
    try:
        with interruptible(), closing(outcomes):
            for number, row in outcomes:
                rows[number] = row
                tell(study, trials[number], plan.value(row))
    finally:
        ordered = [rows[number] for number in sorted(rows)]
        comparison = compare(ordered, directory, plan.target)
    if finished(study):
        least = f"{job(study.best_params).title}  {plan.objective} {study.best_value:.6g}"
        print(f"\nbest: {first_in_ranking(ordered, comparison, plan.target) or least}", flush=True)
    report(comparison, directory, plan.target)
    return 1 if any(row.get("failed") for row in ordered) else 0


def first_trial(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings of a trial with the first value of each swept setting."""
    fixed = [setting.line for setting in settings if not setting.swept]
    first = [f"{setting.key}={lowest(setting)}" for setting in settings if setting.swept]
    return narrow(parse([*fixed, *first]))[0]


def lowest(setting: Setting) -> object:
    """Return the first value of a swept setting."""

    value = setting.override.value()
    if isinstance(value, IntervalSweep):
        return value.start
    return next(setting.override.sweep_string_iterator())


def distribution(setting: Setting) -> BaseDistribution:
    """Return Optuna's distribution over the values of a swept setting."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = setting.override.value()
    if not isinstance(value, IntervalSweep):
        return CategoricalDistribution(list(setting.override.sweep_string_iterator()))
    low, high, log = value.start, value.end, "log" in value.tags
    assert low is not None and high is not None
    try:
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log)
        return FloatDistribution(low, high, log=log)
    except ValueError as error:
        raise ConfigError(setting.name, f"this range cannot be searched: {error}") from error


def open_study(directory: Path, plan: Search, space: Mapping[str, BaseDistribution]) -> Study:
    """Create the study in ``directory``, or continue an existing study.

    Raises ConfigError if the existing study has other settings, or the folder is not writable.
    """
    import optuna
    from optuna.distributions import distribution_to_json
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    make_folder(directory)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(directory / FILE))),
        study_name="search",
        direction=plan.direction,
        load_if_exists=True,
    )
    what = {key: distribution_to_json(spread) for key, spread in space.items()}
    what |= {"objective": plan.objective, "target": str(plan.target)}
    if study.user_attrs.setdefault("search", what) != what:
        raise ConfigError("hydra.sweep.dir", f"{directory} holds another search; choose another.")
    study.set_user_attr("search", what)
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):  # interrupted
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)
    seed = plan.seed + len(study.trials)  # otherwise the same trials would be proposed again
    study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return study


def finished(study: Study) -> list[FrozenTrial]:
    return [trial for trial in study.trials if trial.state.name == "COMPLETE"]


def tell(study: Study, trial: Trial | None, value: float | None) -> None:
    """Report the value of a trial to the study; None means that the trial failed."""
    from optuna.trial import TrialState

    if trial is not None:
        study.tell(trial, value, state=TrialState.FAIL if value is None else TrialState.COMPLETE)
