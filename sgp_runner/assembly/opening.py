"""The recorder of a run, and warnings before training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sgp_runner.config.experiment import Experiment
from sgp_runner.config.run import Run
from sgp_runner.console.estimate import Work
from sgp_runner.core.problem import Problem
from sgp_runner.recording.evaluation_meter import EvaluationMeter
from sgp_runner.recording.loggers.csv import Csv
from sgp_runner.recording.recorder import START, Position, Recorder, last_record, metrics_path, trim
from sgp_runner.utils.devices import device_of
from sgp_runner.utils.launchers import launched, local_ranks
from sgp_runner.utils.messages import logger
from sgp_runner.utils.units import counted, number


@contextmanager
def open_recorder(
    experiment: Experiment,
    rank: int,
    problem: Problem,
    work: Callable[[], Work],
    start: Position = START,
) -> Iterator[Recorder]:
    """Open the recorder of one process rank and continue its file of records at ``start``.

    On process rank 0, the logger and the console receive the records; the console shows the
    progress of ``work``.
    """
    from sgp_runner.console.progress import ConsoleListener

    run, facts = experiment.run, experiment.facts
    if rank != 0 or run.algo.is_probe:
        with Recorder(experiment.directory, rank, (), start) as recorder:
            yield recorder
        return
    names = (facts["algorithm"], facts["model"], facts["data"])
    title = " · ".join([*map(str, names), counted(run.nodes, "node"), run.network.name, run.label])
    notes = run.notes(run.total_steps(problem))
    for note in [
        *notes,
        *oversubscribed(run),
        *outside_validation(run, problem),
        *killed_unsaved(run),
    ]:
        logger.info(note)
    path = metrics_path(experiment.directory, 0)
    if start == START and (sentence := replaced_records(path, run.resume)):
        logger.info(sentence)
    table = experiment.directory / Csv.copied
    if table.exists() and not isinstance(run.logger, Csv):
        logger.info(f"{table} is not continued: remove it, and logger=csv rewrites it.")
    trim(path, start)  # before the mirror counts the lines
    mirror = run.logger.open(
        experiment.directory, experiment.name, experiment.config, experiment.tags, experiment.group
    )
    meter = EvaluationMeter()
    console = ConsoleListener(title, run.network.clock, run.epochs, work, meter)
    with Recorder(experiment.directory, rank, (console, mirror), start, meter) as recorder:
        console.start()
        yield recorder


def oversubscribed(run: Run) -> list[str]:
    """Return a warning if ranks share cores of this machine, which inflates measured times."""
    ranks, cores = local_ranks(run.ranks), os.cpu_count() or 1
    on_cpus = run.network.clock == "wall" and device_of(run.network) == "cpu"
    if not on_cpus or ranks <= cores:
        return []
    share = f"{counted(ranks, 'rank')} share {counted(cores, 'core')}"
    return [f"{share}: measured times say little about ranks on separate machines."]


def outside_validation(run: Run, problem: Problem) -> list[str]:
    """Return a warning if simulated times of this kind were never validated on real machines."""
    if run.network.clock == "wall":
        return []
    params, cluster = problem.start(), run.cluster
    model_bytes = run.timed_as.wire(params).num_bytes(params)
    sentence = cluster.validated.beyond(cluster.name, cluster.links, run.nodes, model_bytes)
    return [] if sentence is None else [sentence]


def killed_unsaved(run: Run) -> list[str]:
    """Return a note on which signals save the run, if it runs under mpirun.

    When mpirun of Open MPI 5 receives Ctrl-C or SIGTERM, it sends SIGTERM to the ranks after
    0.25 s and SIGKILL after 0.5 s. No option changes these times.
    """
    process = launched()
    if run.record or process is None or process.launcher != "mpirun":
        return []
    return [
        "SIGUSR1 to mpirun saves this run and stops it. Ctrl-C and SIGTERM do not save it: "
        "mpirun kills its ranks half a second later."
    ]


def replaced_records(path: Path, resume: str) -> str | None:
    """Describe the records in ``path`` that a run replaces when it starts over."""
    if not path.exists() or not path.stat().st_size:
        return None
    if resume == "never":
        return "The records of an earlier run are replaced (resume=never)."
    epoch = number((last_record(path) or {}).get("epoch"))
    amount = "" if epoch is None else f" ({counted(round(epoch, 1), 'epoch')})"
    return f"The records of an interrupted run{amount} are replaced: it has no checkpoint."
