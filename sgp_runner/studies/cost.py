"""The cost and the power of a study before its first run; nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from time import process_time

from sgp_runner.config.run import Run
from sgp_runner.core.problem import Problem
from sgp_runner.studies.arm_settings import Arm
from sgp_runner.studies.arms import RunMaker, check_arms, max_budget, unnamed_differences
from sgp_runner.studies.candidates import Space
from sgp_runner.studies.power import WANTED, detectable
from sgp_runner.studies.study_file import PILOT_SEEDS, StudyFile
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import counted, duration, num_bytes

GRADIENTS = 5  # that are timed for the estimate
SAMPLES = 4096  # of generated data, for this
START_SECONDS = 1.0  # of a run, until its first step


def describe_cost(study: StudyFile, most: float | None = None) -> list[str]:
    """Return lines about runs, hours, disk space and power. Raises ConfigError as the study would.

    most: maximum hours for the study; the lines then describe a study with fewer seeds and a
        smaller budget that fits, and name both keys. None: the study as it is
    """
    maker = RunMaker(study)
    spaces = check_arms(maker)
    costs = [*costs_of(maker, study.arms)]
    lines = [study.question, ""]
    if most is not None:
        study = shrink(maker, spaces, costs, most)
        lines += [f"In {most:g} h: {', '.join(keys_of(study))}", ""]
    runs = {arm.name: runs_of(maker, arm, spaces) for arm in study.arms}
    counts = [sum(arm_runs.values()) for arm_runs in runs.values()]
    cores = maker.machine.cores
    seconds = arm_seconds_of(maker, spaces, costs)
    disk = sum(number * run_bytes for number, (_, run_bytes) in zip(counts, costs, strict=True))
    return [
        *lines,
        *(
            f"  {name}: {', '.join(parts(arm_runs))}; {duration(math.ceil(arm_seconds))}"
            for (name, arm_runs), arm_seconds in zip(runs.items(), seconds, strict=True)
        ),
        "",
        f"{counted(sum(counts), 'run')} at most, about {duration(math.ceil(sum(seconds)))} on "
        f"{counted(cores, 'core')}, {num_bytes(disk)} of disk in {study.folder}",
        *power_lines(study),
        *filter(None, [unnamed_differences(maker)]),
    ]


def seconds_of_study(study: StudyFile) -> tuple[int, float]:
    """Return the maximum number of runs and their time (s) on all cores. Raises ConfigError."""
    maker = RunMaker(study)
    spaces = check_arms(maker)
    runs = sum(sum(runs_of(maker, arm, spaces).values()) for arm in study.arms)
    return runs, sum(arm_seconds_of(maker, spaces, [*costs_of(maker, study.arms)]))


def arm_seconds_of(
    maker: RunMaker, spaces: Mapping[str, Space], costs: Sequence[tuple[float, float]]
) -> list[float]:
    """Return the seconds of all runs of each arm on all cores; ``costs`` as from `costs_of`."""
    return [
        sum(runs_of(maker, arm, spaces).values()) * seconds / maker.machine.cores
        for arm, (seconds, _) in zip(maker.study.arms, costs, strict=True)
    ]


def shrink(
    maker: RunMaker,
    spaces: Mapping[str, Space],
    costs: Sequence[tuple[float, float]],
    most: float,
) -> StudyFile:
    """Give the maker the study with the most seeds (and a proportional budget) that fits ``most``.

    costs: costs of one run of each arm, as from `costs_of`; most: hours

    Raises ConfigError if two seeds take longer.
    """
    study = maker.study
    if not study.seeds:
        raise ConfigError("--hours", "pilot runs determine the number of seeds; set seeds instead.")
    least = max_budget(spaces)
    for number in range(len(study.seeds), 1, -1):
        budget = max(least, study.tune.budget * number // len(study.seeds))
        maker.study = replace(
            study, seeds=study.seeds[:number], tune=replace(study.tune, budget=budget)
        )
        hours = sum(arm_seconds_of(maker, spaces, costs)) / 3600
        if hours <= most:
            return maker.study
    raise ConfigError(
        "--hours",
        f"{most:g} hours are too few: two seeds"
        + (f" and searches of {counted(budget, 'run')}" if least else "")
        + f" take {hours:.2g}. Leave out arms or values, or allow more hours.",
    )


def keys_of(study: StudyFile) -> Iterator[str]:
    """Yield the keys of a file that determine how long a study takes."""
    yield f"seeds: [{', '.join(map(str, study.seeds))}]"
    if study.tune.budget:
        yield f"tune.budget: {study.tune.budget}"


def runs_of(maker: RunMaker, arm: Arm, spaces: Mapping[str, Space]) -> dict[str, int]:
    """Return the numbers of an arm's runs: search (at most), pilots, and those that decide."""
    study = maker.study
    compared = arm.name in (study.primary, study.baseline)  # pilots have searched settings
    trained = len(study.clusters) if maker.run(arm).algo.asynchronous else 1
    return {
        "search": study.tune.budget if spaces[arm.name].size > 1 else 0,
        "pilot": len(PILOT_SEEDS) if study.matters is not None and compared else 0,
        "deciding": (len(study.seeds) or (study.limits or (0, 0))[1]) * trained,
    }


def parts(counts: Mapping[str, int]) -> Iterator[str]:
    if counts["search"]:
        yield f"at most {counted(counts['search'], 'run')} of its search"
    if counts["pilot"]:
        yield counted(counts["pilot"], "pilot run")
    yield (
        counted(counts["deciding"], "run that decides", "runs that decide")
        if counts["deciding"]
        else "runs that decide as the pilots require"
    )


def costs_of(maker: RunMaker, arms: Sequence[Arm]) -> Iterator[tuple[float, float]]:
    """Yield the core seconds and bytes of disk space of one run of each arm.

    Arms with the same data, model and batches are timed once, on fewer samples if these are
    generated.
    """
    from sgp_runner.assembly.build import build_problem
    from sgp_runner.console.estimate import disk_bytes

    runs = [maker.experiment(maker.overrides(arm), arm.name).run for arm in arms]
    timed: dict[object, tuple[Problem, float, float]] = {}
    for run in runs:
        part, share = part_of(run)
        key = part.model, part.data, part.nodes, part.batch_size, part.micro_batch
        if key not in timed:
            problem = build_problem(part)
            timed[key] = problem, *seconds_of(problem)
            problem.close()
        problem, gradient, evaluation = timed[key]
        whole = replace(run, epochs=run.epochs / share, eval_every=run.eval_every / share)
        seconds = whole.steps(problem) * run.nodes * gradient
        seconds += run.epochs / run.eval_every * evaluation / share + START_SECONDS
        yield seconds, disk_bytes(whole, problem, seconds)


def part_of(run: Run) -> tuple[Run, float]:
    """Return a run on about `SAMPLES` training samples, and the share of all samples that it uses.

    Only generated data sets have default numbers of samples for their splits.
    """
    sizes = {
        field.name: int(getattr(run.data, field.name))
        for field in fields(run.data)  # type: ignore[arg-type]
        if field.name in ("train_size", "valid_size") and field.default is not MISSING
    }
    update = run.nodes * run.batch_size
    few = update * max(1, SAMPLES // update)
    if len(sizes) < 2 or sizes["train_size"] <= few:
        return run, 1.0
    share = few / sizes["train_size"]
    parts = {name: max(1, round(share * size)) for name, size in sizes.items()}
    return replace(run, data=replace(run.data, **parts)), share  # type: ignore[type-var]


def seconds_of(problem: Problem) -> tuple[float, float]:
    """Return the CPU seconds of a gradient and of an evaluation."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            params, buffers = problem.start(), problem.flat.fresh_buffers()
            problem.gradient(params, buffers, 0, 0)
            began = process_time()
            for step in range(GRADIENTS):
                problem.gradient(params, buffers, 0, step)
            gradient = (process_time() - began) / GRADIENTS
            began = process_time()
            problem.evaluate(params, buffers)
            return gradient, process_time() - began
    finally:
        torch.set_num_threads(threads)


def power_lines(study: StudyFile) -> Iterator[str]:
    """Yield sentences about further runs, and about the power of the primary comparison."""
    if len(study.clusters) > 1:
        yield "an arm that polls for messages is trained again on each further cluster"
    if study.seeds and len(study.arms) > 1:
        effect = detectable(len(study.seeds))
        yield (
            f"{counted(len(study.seeds), 'seed')} find a difference between {study.primary} and "
            f"{study.baseline} of {effect:.2g} times the spread of the paired differences with a "
            f"probability of {100 * WANTED:.0f} %"
        )
    if study.matters is not None:
        yield (
            f"pilot runs with seeds {', '.join(map(str, PILOT_SEEDS))} measure this spread, and "
            f"the study stops if its seeds are too few for a difference of {study.matters:g}"
        )
