"""Experiments for tests, and a wrapper that lets a test see the parameters that a run ends with."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml

from helpers.arrivals import wait_for_arrival, wait_for_rest
from sgp_runner.algorithms import Algorithm
from sgp_runner.assembly.dry_run import DryRun
from sgp_runner.assembly.start import execute
from sgp_runner.config.command_line import parse
from sgp_runner.config.experiment import Experiment, stored
from sgp_runner.config.experiment import make_experiment as from_configuration
from sgp_runner.config.overrides import compose, configs
from sgp_runner.core.worker import Worker


def make_experiment(results: Path, *overrides: str) -> Experiment:
    """As the command would, with its ``config.yaml`` in place."""
    return from_tree(composed("logger=jsonl", f"results={results}", *overrides))


def summary_of(experiment: Experiment) -> dict[str, Any]:
    """Run an experiment and return what it says at its end."""
    summary = execute(experiment)
    assert summary is not None
    return summary


def distance(one: Experiment, other: Experiment) -> float:
    """The largest difference of a parameter at the ends of two runs."""
    pairs = zip(final_parameters(one), final_parameters(other), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def composed(*overrides: str) -> dict[str, object]:
    with configs():
        return compose(parse(overrides))


def from_tree(tree: Mapping[str, object]) -> Experiment:
    """Make the experiment of a configuration, with its ``config.yaml`` in place."""
    experiment = from_configuration(tree)
    experiment.directory.mkdir(parents=True)
    text = yaml.dump(stored(experiment), Dumper=yaml.CSafeDumper)  # in a tenth of the time
    (experiment.directory / "config.yaml").write_text(text)
    return experiment


@dataclasses.dataclass(frozen=True)
class Instrumented:
    """Runs ``base``; saves each rank's parameters and model buffers at the end, or fails on one
    rank after its third step.

    dies: as if killed, once the others have come as far as they can without it.
    """

    base: Algorithm
    save_to: Path
    fail_on_rank: int
    dies: bool = False
    is_probe: ClassVar[bool] = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    async def run(self, worker: Worker) -> None:
        if isinstance(worker.runtime, DryRun):
            await self.base.run(worker)
            return
        if worker.rank == self.fail_on_rank and worker.step < 0:
            await self.base.run(worker.limit(3))
            if self.dies:
                wait_for_arrival(worker.comm)
                wait_for_rest(self.save_to)
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("made to fail")
        await self.base.run(worker)
        part = self.save_to / f"part{os.getpid()}"  # the devices of a node save the same
        params = worker.gathered(worker.params).cpu()
        torch.save({"params": params, "taken": worker.steps_taken}, part)
        part.replace(self.save_to / f"rank{worker.rank}.pt")


Instrumented.__module__ = Algorithm.__module__  # it is no plug-in


def instrumented(experiment: Experiment, fail_on_rank: int = -1, dies: bool = False) -> Experiment:
    algo = Instrumented(experiment.run.algo, experiment.directory, fail_on_rank, dies)
    return dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, algo=algo))


def final_parameters(experiment: Experiment) -> list[torch.Tensor]:
    """[D] of every rank, servers last."""
    return [
        saved(experiment, rank)["params"]
        for rank in range(experiment.run.nodes + experiment.run.algo.servers)
    ]


def steps_taken(experiment: Experiment) -> list[int]:
    return [
        saved(experiment, rank)["taken"]
        for rank in range(experiment.run.nodes + experiment.run.algo.servers)
    ]


def saved(experiment: Experiment, rank: int) -> dict[str, Any]:
    values: dict[str, Any] = torch.load(experiment.directory / f"rank{rank}.pt", weights_only=True)
    return values
