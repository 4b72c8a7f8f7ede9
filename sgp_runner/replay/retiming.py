"""Train once, time many: re-time the records of a trained run on another cluster.

If the decisions of an algorithm do not depend on time, another cluster changes only the times of
events. Therefore a simulation on that cluster, with messages of the same size but no gradients,
gives the time and the bytes of each record of the trained run. The resulting records are
byte-identical to the records of a run trained on that cluster, in the same order.

Decisions depend on time if workers share one budget of gradients or poll for arrived messages
(`Comm.poll`, `Comm.recv_any`). Such a run is rejected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from sgp_runner.assembly.simulated.times import (
    DependsOnTime,
    WithoutPolls,
    fastest_times,
    simulate_times,
    without_values,
)
from sgp_runner.config.experiment import Experiment, load_experiment, make_experiment, stored
from sgp_runner.config.old_names import FLAT
from sgp_runner.config.run import Run
from sgp_runner.distributed.private_folder import private_folder
from sgp_runner.recording.divergence import FILE as DIVERGED
from sgp_runner.recording.recorder import (
    Recorder,
    as_json,
    metrics_path,
    read_lines,
    read_summary,
    write_summary,
)
from sgp_runner.replay.what_if import with_settings_of
from sgp_runner.utils.errors import ConfigError, RankFailed
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.reading import read_text

KEY = "--retime"
CLUSTER = "cluster"
OF_THE_CLUSTER = ("time_s", "bytes_sent")  # fields of a record
# Fields of a summary.
COSTS = (
    "time_s",
    "real_s",
    "steps",
    "bytes_per_node",
    "coding_s",
    "time_s_fastest",
    "evaluated_fastest",
)
SAME = ("step", "epoch", "lr", "staleness", "push_sum_weight")  # fields equal on all clusters


class TimeDecides(ConfigError):
    """A run cannot be re-timed, because the decisions of its algorithm depend on time."""


@dataclass(frozen=True)
class Machines:
    """Machines on which runs are re-timed.

    name: suffix of the folders of the re-timed runs
    source: a complete configuration
    keys: the settings of a run to replace by their values in ``source``
    """

    name: str
    source: Mapping[str, Any]
    keys: Sequence[str]


def machines_in(argv: Sequence[str], config_dir: str | None = None) -> list[Machines]:
    """Return the machines for each combination of the values in ``argv``.

    argv: ``cluster=a,./lab.yaml``, or settings such as ``cluster.bandwidth=1Gbit/s``; without
        ``cluster=``, the settings change the cluster of each run
    config_dir: a folder of presets, for example written by ``sgp-run calibrate``
    """
    from sgp_runner.config.command_line import parse, search_in, typed
    from sgp_runner.config.overrides import compose, configs
    from sgp_runner.config.plugins.loading import named

    for argument in argv:
        key, _, values = argument.partition("=")
        if key.partition(".")[0] != CLUSTER or not values:
            raise ConfigError(
                KEY,
                f"'{argument}' does not describe a cluster: write {KEY} "
                f"cluster=infiniband_100g,./lab.yaml or {KEY} cluster.bandwidth=1Gbit/s.",
            )
    argv = named(argv)  # before Hydra looks for the files that this registers
    with configs():
        search = [] if config_dir is None else [search_in(config_dir)]
        single_values = [
            [f"{setting.name}={value}" for value in setting.override.sweep_string_iterator()]
            if setting.swept
            else [typed(setting.line)]
            for setting in parse([*search, *argv])[len(search) :]
        ]
        return [
            machines_with(arguments, compose(parse([*search, *arguments])))
            for arguments in product(*single_values)
        ]


def machines_with(arguments: Sequence[str], source: Mapping[str, Any]) -> Machines:
    """Return the machines of one combination of values.

    source: the complete configuration with these values"""
    from sgp_runner.report.read.naming import file_name

    values = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    names = [values[CLUSTER]] if CLUSTER in values else []
    keys = {key: key.partition(".")[2] for key in values if key != CLUSTER}
    names += [file_name(FLAT.get(name, name), values[key]) for key, name in keys.items()]
    return Machines("-".join(names), source, [CLUSTER] if CLUSTER in values else [*values])


def retime_all(
    folders: Sequence[Path], argv: Sequence[str], out: Path, config_dir: str | None = None
) -> list[Path]:
    """Re-time all runs in ``folders`` on the machines in ``argv``; return the new folders."""
    from sgp_runner.report.read.run_folders import run_folders

    others = machines_in(argv, config_dir)
    runs, _ = run_folders(folders)
    return [retime(folder, machines, out) for folder in runs for machines in others]


def retime(folder: Path, machines: Machines, out: Path) -> Path:
    """Re-time the run in ``folder`` on other machines; return the new folder in ``out``.

    Raises ConfigError if the run cannot be re-timed.
    """
    import yaml

    trained, summary = finished(folder)
    # The cluster defines the devices of a node.
    config = {**trained.config, "gpus_per_node": 1}
    experiment = make_experiment(with_settings_of(machines.source, machines.keys, config))
    there = folder_on(folder, machines, out)
    with private_folder() as scratch:
        costs = replay(experiment, folder, scratch)
        timed = read_lines(metrics_path(scratch, 0))
        try:
            records = list(merged(read_lines(metrics_path(folder, 0)), timed, folder))
        except ConfigError:
            raise
        except (OSError, ValueError, TypeError) as error:
            refuse(folder, f"its records cannot be read ({error})")
    retimed = {
        **{key: value for key, value in summary.items() if key not in COSTS},
        **experiment.facts,
        "run_dir": str(there),
        **costs,
        "label": f"{experiment.run.label}, re-timed from {folder.name}",
        "retimed_from": str(folder),
    }
    try:
        there.mkdir(parents=True, exist_ok=True)
        (there / "summary.json").unlink(missing_ok=True)
        settings = yaml.safe_dump(stored(experiment), sort_keys=False, allow_unicode=True)
        replace_file(there / "config.yaml", settings)
        if (folder / "environment.json").exists():
            replace_file(there / "environment.json", read_text(folder / "environment.json"))
        lines = map(as_json, (*records, {"kind": "summary", **retimed}))
        replace_file(metrics_path(there, 0), "".join(f"{line}\n" for line in lines))
        write_summary(there, retimed)
    except OSError as error:
        raise ConfigError("--out", f"cannot write to {there}: {error.strerror}.") from error
    return there


def folder_on(folder: Path, machines: Machines, out: Path) -> Path:
    """Return the folder for a run that is re-timed on other machines."""
    return out / f"{folder.name}-on-{machines.name}"


def finished(folder: Path) -> tuple[Experiment, dict[str, object]]:
    """Return the trained run in ``folder`` and its summary.

    Raises ConfigError if the run cannot be re-timed.
    """
    experiment, summary = load_experiment(folder / "config.yaml", None), read_summary(folder)
    run = experiment.run
    refusals = {
        "it is a real run, whose times are measured, not simulated; "
        "run it on that network, or train with network=sim": run.network.clock != "simulated",
        "it is a timing study, without training to keep; "
        "run it with the other cluster": not run.model.trains,
        "it has diverged; train it with a smaller learning rate": (folder / DIVERGED).exists(),
        "it has not finished; run its command again to resume it": summary is None,
    }
    for why, applies in refusals.items():
        if applies:
            refuse(folder, why)
    assert summary is not None
    check_decisions(run, folder)
    return experiment, summary


def check_decisions(run: Run, folder: Path) -> None:
    """Raise ConfigError for an asynchronous algorithm; `replay` rejects algorithms that poll."""
    if run.algo.asynchronous:
        why = f"the decisions of {run.algo.title} depend on time; train it on that cluster"
        refuse(folder, why, TimeDecides)


def refuse(folder: Path, why: str, error: type[ConfigError] = ConfigError) -> NoReturn:
    raise error(KEY, f"{folder} cannot be re-timed: {why}.")


def replay(experiment: Experiment, folder: Path, scratch: Path) -> dict[str, object]:
    """Simulate the run without gradients, write its records to ``scratch``; return the costs."""
    from sgp_runner.core.scheduler import Deadlock
    from sgp_runner.core.step_hooks import StepHooks
    from sgp_runner.recording.observer import Observer

    run = experiment.run
    problem = without_values(run)
    steps = StepHooks()
    simulation, workers = simulate_times(run, problem, wrap=WithoutPolls, listener=steps)
    with Recorder(scratch, 0, ()) as recorder:
        observer = Observer(run, problem, recorder)
        steps.recorder = observer.end_of_step
        try:
            simulation.run()
        except RankFailed as error:
            if not isinstance(error.__cause__, DependsOnTime):
                raise
            refuse(
                folder,
                f"{run.algo.title} with these settings polls for messages, so its decisions "
                "depend on time; train it on that cluster",
                TimeDecides,
            )
        except Deadlock:
            name = experiment.run.cluster.name
            refuse(folder, f"every worker is blocked on cluster={name} with its faults")
        summary = observer.conclude(workers) | simulation.coding | fastest_times(run)
    return {key: summary[key] for key in COSTS if key in summary}


def merged(
    trained: Iterable[Mapping[str, Any]], timed: Iterable[Mapping[str, Any]], folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield the records of ``trained`` in the order and with the times of ``timed``."""
    waiting: dict[tuple[object, object], deque[Mapping[str, Any]]] = {}
    for record in trained:
        if record["kind"] != "summary":
            waiting.setdefault((record["kind"], record.get("rank")), deque()).append(record)
    for record in timed:
        queue = waiting.get((record["kind"], record.get("rank")))
        if not queue or any(record.get(key) != queue[0].get(key) for key in SAME):
            break
        yield {**queue.popleft(), **{key: record[key] for key in OF_THE_CLUSTER if key in record}}
    else:
        if not any(waiting.values()):
            return
    refuse(
        folder,
        "its records do not match its settings; it was made by another version, so train it again",
    )
