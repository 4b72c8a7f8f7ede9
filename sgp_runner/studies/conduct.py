"""Conducting a study: searches, pilots, the runs that decide, and re-timing on other clusters.

Every phase skips finished runs, so the same command continues an interrupted study.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from sgp_runner.jobs.job_pool import PoolJob, RunJob
from sgp_runner.replay.retiming import TimeDecides, retime
from sgp_runner.studies.arm_settings import Arm
from sgp_runner.studies.arms import RetimedJob, RunMaker
from sgp_runner.studies.candidates import Score, Space, Trial, Tuned
from sgp_runner.studies.measures import RunResult, classes_of, loss, number, pairing
from sgp_runner.studies.power import (
    CONFIDENCE,
    MAX_SEEDS,
    WANTED,
    SeedPlan,
    power,
    seeds_needed,
    upper_limit,
)
from sgp_runner.studies.statistics import paired
from sgp_runner.studies.study_file import PILOT_SEEDS, StudyFile, first_seeds
from sgp_runner.studies.tuning import further_seeds, search
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.messages import logger
from sgp_runner.utils.units import counted

NEAR = 0.1  # share of the best tuned loss within which a target is taken to be reachable


class RunsFailed(RuntimeError):
    """Raised when runs of a study fail for a reason other than divergence."""


@dataclass(frozen=True)
class ArmResult:
    """The finished runs of an arm.

    space, tuned: the search and its result
    runs: for each cluster, the runs that decide, in the order of the seeds
    """

    arm: Arm
    space: Space
    tuned: Tuned
    runs: Sequence[Sequence[RunResult]]

    @property
    def settings(self) -> tuple[str, ...]:
        """The tuned settings, as overrides."""
        return self.space.overrides(self.tuned.chosen) if self.space.size > 1 else ()

    @property
    def diverged(self) -> int:
        """The number of diverged runs on the first cluster."""
        return sum(run.job.diverged for run in self.runs[0])


@dataclass(frozen=True)
class Conducted:
    """A study with all its runs.

    seeds: the seeds of the runs that decide
    plan: the number of seeds and its justification; None without ``matters``
    """

    study: StudyFile
    arms: Sequence[ArmResult]
    seeds: tuple[int, ...]
    plan: SeedPlan | None


def conduct(maker: RunMaker, spaces: Mapping[str, Space]) -> Conducted:
    """Execute all missing runs of the study and return the results.

    Raises ConfigError if no arm can reach a target or there are too few seeds, RunsFailed if runs
    fail, and Stopped after a signal, once the runs are saved.
    """
    study = maker.study
    tuned = tune(maker, spaces)
    check_targets(study, tuned)
    chosen = {
        name: spaces[name].overrides(result.chosen) if spaces[name].size > 1 else ()
        for name, result in tuned.items()
    }
    plan = pilot(maker, chosen) if study.matters is not None else None
    seeds = study.seeds or (first_seeds(plan.seeds) if plan else ())
    runs = decide(maker, chosen, seeds)
    arms = [ArmResult(arm, spaces[arm.name], tuned[arm.name], runs[arm.name]) for arm in study.arms]
    return Conducted(study, arms, seeds, plan)


def tune(maker: RunMaker, spaces: Mapping[str, Space]) -> dict[str, Tuned]:
    """Search the settings of all arms, round by round, and return the results."""
    study, out = maker.study, {}
    further = 0 if study.tune.earlier else further_seeds(spaces.values(), study.tune.budget)
    searches = {
        name: search(space, study.tune.budget, further, study.tune.earlier)
        for name, space in spaces.items()
    }
    answers: dict[str, Sequence[Score] | None] = dict.fromkeys(searches)
    while answers:
        rounds: dict[str, list[tuple[Trial, RunJob]]] = {}
        for name, answer in answers.items():
            try:
                trials = next(searches[name]) if answer is None else searches[name].send(answer)
            except StopIteration as end:
                out[name] = end.value
                continue
            rounds[name] = [
                (trial, tuning_job(maker, spaces[name], name, trial)) for trial in trials
            ]
        make(
            maker,
            (
                (
                    f"{name} {' '.join(spaces[name].overrides(trial.candidate))} seed {trial.seed}",
                    job,
                )
                for name, runs in rounds.items()
                for trial, job in runs
            ),
        )
        answers = {name: [score(study, job) for _, job in runs] for name, runs in rounds.items()}
    return {name: out[name] for name in spaces}


def score(study: StudyFile, job: RunJob) -> Score:
    """Return the score of a search's run: its loss, or its cost to the target and its loss."""
    value = loss(job)
    if study.tune.by is None:
        return Score(value, value)
    reached, _ = RunResult(job).reached(study.tune.by)
    return Score(inf if reached is None else reached, value)


def tuning_job(maker: RunMaker, space: Space, name: str, trial: Trial) -> RunJob:
    overrides = space.overrides(trial.candidate)
    return maker.job(maker.study.arm(name), overrides, trial.seed, role="tuning")


def make(maker: RunMaker, titled: Iterable[tuple[str, PoolJob]]) -> None:
    """Run the jobs that are due, and print a line as each finishes. Raises RunsFailed."""
    titles: dict[Path, str] = {}
    jobs: dict[Path, PoolJob] = {}
    for title, job in titled:
        titles.setdefault(job.folder, title)
        jobs.setdefault(job.folder, job)
    due = sum(job.due for job in jobs.values())
    failures: dict[Path, str] = {}
    for done, (job, error) in enumerate(maker.run_all(jobs.values()), start=1):
        outcome = outcome_of(job, error)
        if outcome not in failures.values():  # such as data that is missing
            logger.info(f"[{done}/{due}] {titles[job.folder]}: {outcome}")
        if error is not None and not job.diverged:
            failures[job.folder] = error
    if failures:
        folder, error = next(iter(failures.items()))
        raise RunsFailed(
            f"{counted(len(failures), 'run')} failed; the same command retries "
            f"them. The first: {titles[folder]}: {error}"
        )


def outcome_of(job: PoolJob, error: str | None) -> str:
    if job.diverged:
        return "diverged"
    return error or f"loss {number(job, 'average_loss'):.4f}"


def check_targets(study: StudyFile, tuned: Mapping[str, Tuned]) -> None:
    """Raise ConfigError for a target loss that no run of the searches comes near."""
    losses = [value for result in tuned.values() for value in result.losses.values()]
    best = min(losses, default=0.0)
    for measure in study.measures:
        if measure.quality == "loss" and (measure.target or best) < (1 - NEAR) * best:
            raise ConfigError(
                "measures",
                f"no arm reaches a loss of {measure.target:g} in its search; the best is "
                f"{best:.4g}: choose an easier target.",
            )


def results(maker: RunMaker, arm: Arm, jobs: Sequence[RunJob | RetimedJob]) -> list[RunResult]:
    """Return the finished runs; the data are loaded only if a run has diverged."""
    classes = classes_of(maker.run(arm)) if any(job.diverged for job in jobs) else None
    return [RunResult(job, classes) for job in jobs]


def pilot(maker: RunMaker, chosen: Mapping[str, tuple[str, ...]]) -> SeedPlan:
    """Execute the pilot runs of the primary comparison and return the number of seeds it needs.

    Raises ConfigError if the seeds of the study have a power below `WANTED`.
    """
    study = maker.study
    assert study.matters is not None
    arms = [study.arm(name) for name in (study.primary, study.baseline)]
    jobs = {
        arm.name: [maker.job(arm, chosen[arm.name], seed, role="pilot") for seed in PILOT_SEEDS]
        for arm in arms
    }
    make(
        maker,
        (
            (f"{name} pilot seed {seed}", job)
            for name, arm_jobs in jobs.items()
            for seed, job in zip(PILOT_SEEDS, arm_jobs, strict=True)
        ),
    )
    runs = {arm.name: results(maker, arm, jobs[arm.name]) for arm in arms}
    values = pairing(runs, study.measures[0])(study.primary, study.baseline)
    return plan_of(study, paired(*values).spread)


def plan_of(study: StudyFile, spread: float) -> SeedPlan:
    """Return the plan for pilots with this ``spread``. Raises ConfigError for too few seeds."""
    assert study.matters is not None
    spread = max(spread, study.matters / 100)  # seeds that are all alike
    limit = f"the upper limit at {100 * CONFIDENCE:.0f} % of the pilots' {spread:.2g}"
    spread = upper_limit(spread, len(PILOT_SEEDS))
    needed = seeds_needed(study.matters, spread)
    unit = f"at a spread of {spread:.2g}, {limit}"
    if study.limits is not None:
        least, most = study.limits
        count = min(max(least, needed or most), most)
        unit = str(study.measures[0])
        return SeedPlan(study.matters, spread, count, unit, limit, is_limited=True)
    if needed is None:
        raise ConfigError(
            "matters",
            f"{MAX_SEEDS} seeds do not detect a difference of {study.matters:g} {unit}: "
            "choose a larger difference, or a task with less noise.",
        )
    count = len(study.seeds) or needed
    if count < needed:
        probability = 100 * power(study.matters, spread, count)
        raise ConfigError(
            "seeds",
            f"{count} seeds detect a difference of {study.matters:g} with a probability of "
            f"{probability:.0f} % {unit}; {100 * WANTED:.0f} % need {needed}: "
            "leave seeds out, or write more.",
        )
    return SeedPlan(study.matters, spread, count, str(study.measures[0]), limit)


def decide(
    maker: RunMaker, chosen: Mapping[str, tuple[str, ...]], seeds: Sequence[int]
) -> dict[str, list[list[RunResult]]]:
    """Execute the runs that decide, seed by seed, and return them by arm and cluster.

    On further clusters, runs are re-timed if the algorithm's decisions do not depend on time, and
    trained again otherwise.
    """
    study = maker.study
    trained = {
        arm.name: [maker.job(arm, chosen[arm.name], seed) for seed in seeds] for arm in study.arms
    }
    make(
        maker,
        (
            (f"{arm.name} seed {seed}", trained[arm.name][place])
            for place, seed in enumerate(seeds)
            for arm in study.arms
        ),
    )
    jobs: dict[str, list[Sequence[RunJob | RetimedJob]]] = {
        name: [arm_jobs] for name, arm_jobs in trained.items()
    }
    others = range(1, len(study.clusters))
    for arm in study.arms if others else ():
        again = not can_be_retimed(maker, arm, trained[arm.name])
        for cluster in others:
            jobs[arm.name].append(
                [maker.job(arm, chosen[arm.name], seed, cluster) for seed in seeds]
                if again
                else [maker.retimed(job, cluster) for job in trained[arm.name]]
            )
    make(
        maker,
        (
            (
                f"{name} seed {seed} {' '.join(study.clusters[where].overrides)}",
                jobs[name][where][place],
            )
            for where in others
            for place, seed in enumerate(seeds)
            for name in jobs
        ),
    )
    return {
        name: [results(maker, study.arm(name), cluster_jobs) for cluster_jobs in by_cluster]
        for name, by_cluster in jobs.items()
    }


def can_be_retimed(maker: RunMaker, arm: Arm, jobs: Sequence[RunJob]) -> bool:
    """Re-time one run of an arm and return whether another cluster changes only its times."""
    if maker.run(arm).algo.asynchronous:
        return False
    job = next((job for job in jobs if not job.diverged), None)
    first = None if job is None else maker.retimed(job, 1)
    if job is None or first is None or first.finished:
        return True
    try:
        retime(job.folder, first.machines, first.out)
    except TimeDecides:
        return False
    return True
