"""Train once, time many: what a trained run would have recorded on another cluster, without
training again.

Where the course of an algorithm does not depend on time, another cluster changes when things happen
and nothing else. So the run is simulated again on that cluster with messages of the same size and
no gradients, and every record of the trained run gets the time and the bytes of its counterpart.
The lines are those of a real training there, byte for byte, in their order.

A course depends on time if workers share one budget of gradients, or if they ask what has arrived
(`Comm.poll`, `Comm.recv_any`): then the run is refused.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from sgp_runner.config.corrections import refuse_outdated
from sgp_runner.core.comm import Transport
from sgp_runner.recording.recorder import (
    Recorder,
    as_json,
    metrics_path,
    read_lines,
    read_summary,
    replace_file,
    write_summary,
)
from sgp_runner.utils.errors import ConfigError, RankFailed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sgp_runner.config.experiment import Experiment
    from sgp_runner.config.run import Run
    from sgp_runner.core.problem import Problem
    from sgp_runner.core.scheduler import Future
    from sgp_runner.data.dataset import Split

KEY = "--retime"
OF_THE_CLUSTER = ("time_s", "bytes_sent")  # in a record
COSTS = ("time_s", "real_s", "steps", "bytes_per_node")  # in a summary
SAME = ("step", "epoch", "lr", "staleness", "push_sum_weight")  # wherever the run is timed


class DependsOnTime(Exception):
    """The algorithm has asked what has arrived."""


def clusters_in(word: str) -> dict[str, object]:
    """``cluster=a,b``: the settings of each by its name."""
    from sgp_runner.config.overrides import compose, configs

    key, _, names = word.partition("=")
    if key != "cluster" or not names:
        raise ConfigError(
            KEY, f"'{word}' names no clusters: write {KEY} cluster=infiniband_100g,ethernet_10g."
        )
    with configs():
        return {name: compose([f"cluster={name}"])["cluster"] for name in names.split(",")}


def retime_all(folders: Sequence[Path], word: str, out: Path) -> list[Path]:
    """The folders of all runs in ``folders`` as they would have gone on the clusters that ``word``
    names; they are made in ``out``.
    """
    from sgp_runner.report.runs import run_folders

    clusters = clusters_in(word)
    runs = {path.resolve(): path for folder in folders for path in run_folders(folder)}
    return [
        retime(folder, name, cluster, out)
        for folder in runs.values()
        for name, cluster in clusters.items()
    ]


def retime(folder: Path, name: str, cluster: object, out: Path) -> Path:
    """The run in ``folder`` on ``cluster``, which is called ``name``, in a folder of its own in
    ``out``. Raises ConfigError.
    """
    import yaml

    from sgp_runner.config.schema import stored

    trained, summary = finished(folder)
    experiment = on_cluster(trained, cluster)
    there = out / f"{folder.name}-on-{name}"
    with TemporaryDirectory() as scratch:
        costs = replay(experiment, folder, Path(scratch))
        records = list(
            merged(
                read_lines(metrics_path(folder, 0)),
                read_lines(metrics_path(Path(scratch), 0)),
                folder,
            )
        )
    label = f"{experiment.run.label}, re-timed from {folder.name}"
    retimed = {
        **summary,
        **experiment.facts,
        "run_dir": str(there),
        **costs,
        "label": label,
        "retimed_from": str(folder),
    }
    try:
        there.mkdir(parents=True, exist_ok=True)
        (there / "summary.json").unlink(missing_ok=True)
        replace_file(
            there / "config.yaml",
            yaml.safe_dump(stored(experiment), sort_keys=False, allow_unicode=True),
        )
        if (folder / "environment.json").exists():  # of the training
            replace_file(
                there / "environment.json",
                (folder / "environment.json").read_text(encoding="utf-8"),
            )
        replace_file(
            metrics_path(there, 0),
            "".join(
                as_json(record) + "\n" for record in (*records, {"kind": "summary", **retimed})
            ),
        )
        write_summary(there, retimed)
    except OSError as error:
        raise ConfigError("--out", f"cannot write to {there}: {error.strerror}.") from error
    return there


def finished(folder: Path) -> tuple[Experiment, dict[str, object]]:
    """The trained run in ``folder``, and its summary. Raises ConfigError for one that cannot be
    timed again.
    """
    from sgp_runner.config.schema import load_experiment

    experiment, summary = load_experiment(folder / "config.yaml", None), read_summary(folder)
    run = experiment.run
    refuse_outdated(experiment.config, folder)
    if run.network.clock != "simulated":
        refuse(
            folder,
            "it is a real run, whose times are measured, not simulated; run it on that network, or train with network=sim",
        )
    if not run.model.trains:
        refuse(
            folder,
            "it is a timing study, which learns nothing that could be kept; run it with the other cluster",
        )
    if summary is None:
        refuse(folder, "it has not finished; the command that started it goes on")
    if run.algo.asynchronous:
        refuse(
            folder,
            f"the course of {run.algo.title} depends on time, so another cluster means another training; train it there",
        )
    return experiment, summary


def refuse(folder: Path, why: str) -> NoReturn:
    raise ConfigError(KEY, f"{folder} cannot be re-timed: {why}.")


def on_cluster(trained: Experiment, cluster: object) -> Experiment:
    """The experiment that trains the same there."""
    from sgp_runner.config.schema import make_experiment

    return make_experiment({**trained.config, "cluster": cluster})


def replay(experiment: Experiment, folder: Path, scratch: Path) -> dict[str, object]:
    """Simulate it without gradients, leaving records in ``scratch``; what it costs."""
    from sgp_runner.core.scheduler import Deadlock
    from sgp_runner.core.worker import Steps
    from sgp_runner.recording.observer import Observer
    from sgp_runner.simulator.backend import simulate
    from sgp_runner.simulator.engine import NoGradients

    run = experiment.run
    problem = unlearned(run)
    steps = Steps()
    simulation, workers = simulate(run, problem, NoGradients(), wrap=WithoutPolls, listener=steps)
    for worker in workers:
        worker.learns = False
        simulation.start(worker, run.algo.run(worker))
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
                f"{run.algo.title} with these settings asks what has arrived, so its course depends on time; train it there",
            )
        except Deadlock:
            refuse(
                folder,
                f"nobody can go on any more on cluster={experiment.run.cluster.name} with its faults",
            )
        summary = observer.conclude(workers)
    return {key: summary[key] for key in COSTS}


class WithoutPolls(Transport):
    """The messages of a worker that may wait for them, but not ask for those that have arrived."""

    def __init__(self, base: Transport) -> None:
        self.base = base

    def send(self, dst: int, tag: int, message: Tensor) -> int:
        return self.base.send(dst, tag, message)

    def all_reduce(self, number: int, tensor: Tensor) -> tuple[Future[Tensor], int]:
        return self.base.all_reduce(number, tensor)

    def all_gather(self, number: int, tensor: Tensor) -> tuple[Future[list[Tensor]], int]:
        return self.base.all_gather(number, tensor)

    def may_poll(self, arrived: bool) -> NoReturn:
        raise DependsOnTime

    def check_any_source(self) -> NoReturn:
        raise DependsOnTime


def unlearned(run: Run) -> Problem:
    """The problem of ``run`` with as many parameters and steps, all of them zero; evaluating them
    costs nothing and says nothing.
    """
    from sgp_runner.core.flat import FlatModule
    from sgp_runner.models.vector import Placeholder

    with closing(run.make_problem()) as problem:
        module = Placeholder(sum(problem.flat.layers)).to(run.torch_dtype)
        dataset = dataclasses.replace(problem.dataset, task=Unknown())
        return dataclasses.replace(problem, flat=FlatModule(module), dataset=dataset)


@dataclass(frozen=True)
class Unknown:
    """A task whose results are not worth knowing."""

    name: ClassVar[str] = "unknown"
    metric: ClassVar[str] = "loss"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise RuntimeError("a run that is timed again computes no gradients")

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        return {"loss": 0.0}


def merged(
    trained: Iterable[Mapping[str, Any]], timed: Iterable[Mapping[str, Any]], folder: Path
) -> Iterator[dict[str, Any]]:
    """Records of ``trained``, in the order of their counterparts in ``timed`` and with their times."""
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
        "its records are not those of its settings; it was made by another version, train it again",
    )
