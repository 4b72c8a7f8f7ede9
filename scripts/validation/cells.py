"""Measured and published times (``results/validation/cells.csv``), and simulated times.

Each line of the file is a cell in a table of ``docs/validation.md``. The columns:

table: name of the table
cell: labels of what was timed, separated by semicolons
measure: ``iteration``, seconds per iteration; ``steps A B``, of the steps A to B of node 0, counted
    from 0; ``all_reduce NODES BYTES SECONDS``, plus further seconds; ``send FROM TO BYTES``
seconds: the real time
fitted: whether a constant of the profile was fitted to this time
settings: overrides of sgp-run
left_out: override with the constant from a fit without this time
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from io import StringIO
from pathlib import Path
from statistics import fmean

from sgp_runner.api.running import run
from sgp_runner.cluster.faults import Faults
from sgp_runner.config.overrides import experiment_of
from sgp_runner.config.run import Run
from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.simulator.fabric import Fabric

CELLS = Path(__file__).resolve().parents[2] / "results" / "validation" / "cells.csv"


@dataclass(frozen=True)
class Cell:
    table: str
    cell: str
    measure: str
    seconds: float
    fitted: bool
    settings: str
    left_out: str

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.cell.split("; "))

    @cached_property
    def simulated(self) -> float:
        return simulate(self.measure, *self.settings.split())

    @property
    def error(self) -> float:
        """Error of the simulated time in percent."""
        return 100 * (self.simulated / self.seconds - 1)

    @cached_property
    def error_left_out(self) -> float:
        """Error in percent of the time predicted by a fit without this cell."""
        if not self.left_out:
            return self.error
        seconds = simulate(self.measure, *self.settings.split(), self.left_out)
        return 100 * (seconds / self.seconds - 1)


@cache
def cells() -> list[Cell]:
    with CELLS.open(encoding="utf-8", newline="") as file:
        return [
            Cell(**line | {"seconds": float(line["seconds"]), "fitted": line["fitted"] == "yes"})
            for line in csv.DictReader(file)
        ]


def scored(cells: Iterable[Cell]) -> list[float]:
    """Return the errors of predicted times: not fitted, or left out of a fit."""
    return [cell.error_left_out for cell in cells if cell.left_out or not cell.fitted]


def mean_and_worst(errors: Iterable[float]) -> tuple[float, float]:
    """Return the mean and the largest absolute value of ``errors``."""
    sizes = [abs(error) for error in errors]
    return fmean(sizes), max(sizes)


@cache
def run_of(*settings: str) -> Run:
    return experiment_of(["model=timing_only", *settings]).run


def simulate(measure: str, *settings: str) -> float:
    """Return the simulated seconds of the operation given by ``measure``."""
    kind, *numbers = measure.split()
    match kind, [float(number) for number in numbers]:
        case "all_reduce", [nodes, num_bytes, *besides]:
            cluster = run_of(*settings).cluster
            return sum(besides) + cluster.all_reduce_seconds(int(nodes), num_bytes)
        case "send", [sender, receiver, num_bytes]:
            asked = run_of(*settings)
            links = asked.cluster.links
            fabric = Fabric(links, Faults(), VirtualClock(), asked.nodes, lambda sent: None)
            stream = fabric.stream_seconds(int(sender), int(receiver), num_bytes)
            return links.latency_seconds + stream
        case _, span:
            return run_seconds(span, *settings)


def run_seconds(span: list[float], *settings: str) -> float:
    """Return the simulated seconds of the steps in ``span``, or of a mean step if it is empty."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        result = run(*settings, results=folder)
        if not span:
            return float(result.summary["ms_per_iteration"]) / 1000
        ends = {
            record["step"]: record["time_s"]
            for record in read_metrics(result.folder)
            if record["kind"] == "train" and record["rank"] == 0
        }
    first, last = map(int, span)
    return float(ends[last] - (ends[first - 1] if first else 0.0))
