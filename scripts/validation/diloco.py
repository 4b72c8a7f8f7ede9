"""Measured steps of DiLoCo (``results/validation/``) and their simulated times.

H is the number of inner steps between two synchronisations. The constants in
``configs/cluster/diloco_l40s*.yaml`` come from the runs with H = 1: the time of a step, the time of
a synchronisation at each rate, and the extra time of a process's first synchronisation, during
which NCCL connects the nodes. With H = 32 the first synchronisation is among the measured steps;
with H = 8 it is in the warm-up.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from sgp_runner.utils.units import bit_rate
from validation.cells import Cell, simulated
from validation.tcp import ROOT, achieved

FOLDER = ROOT / "results" / "validation"
NODES, BYTES = 4, 4 * 30_846_720
PROFILES = {5e9: "_5g", 1e9: "_1g", 200e6: "_200m", 50e6: "_50m", None: ""}
# Number of warm-up steps before the measured steps, by H and rate, if it is not 10.
WARMUPS = {(1, 200e6): 5, (1, 50e6): 2, (8, 50e6): 8}
UNSHAPED_WARMUP = 20


@dataclass(frozen=True)
class Measured:
    """The repeated runs with one number of inner steps H on links of one rate.

    period: H. rate: bit/s; None if the links are not limited. steps, syncs: the measured steps and
    synchronisations of each run. total, blocked: the seconds of all measured steps and of their
    synchronisations, for each repeat.
    """

    period: int
    rate: float | None
    steps: int
    syncs: int
    total: tuple[float, ...]
    blocked: tuple[float, ...]

    @property
    def window(self) -> tuple[int, int]:
        """The first and the last measured step, counted from 0."""
        warmup = UNSHAPED_WARMUP
        if self.rate is not None:
            warmup = WARMUPS.get((self.period, self.rate), 10)
        return warmup, warmup + self.steps - 1

    @property
    def words(self) -> tuple[str, str]:
        return f"H = {self.period}", named(self.rate)


def named(rate: float | None) -> str:
    return "not shaped" if rate is None else bit_rate(rate)


def measured() -> list[Measured]:
    """Return the measured runs, sorted by H and by decreasing rate."""
    cells: dict[tuple[int, float | None], list[Mapping[str, str]]] = {}
    for line in lines("diloco_measured.csv"):
        cells.setdefault((int(line["H"]), rate_of(line)), []).append(line)
    found = [
        Measured(
            *key,
            int(repeats[0]["steps"]),
            int(repeats[0]["syncs"]),
            tuple(float(line["total_s"]) for line in repeats),
            tuple(float(line["sync_blocked_s"]) for line in repeats),
        )
        for key, repeats in cells.items()
    ]
    return sorted(found, key=lambda cell: (cell.period, -(cell.rate or 1e12)))


def lines(name: str) -> Iterator[Mapping[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def rate_of(line: Mapping[str, str]) -> float | None:
    return float(line["requested_bit_per_s"]) if line["requested_bit_per_s"] else None


# Constants, from the runs with H = 1 only.


def alone() -> list[Measured]:
    return [cell for cell in measured() if cell.period == 1]


def step_seconds() -> float:
    """Return the mean seconds of a step without synchronisation."""
    rest = sum(sum(cell.total) - sum(cell.blocked) for cell in alone())
    return rest / sum(cell.steps * len(cell.total) for cell in alone())


def ring_bandwidths() -> dict[float | None, float]:
    """Return, by rate, the bit/s at which a ring all-reduce takes as long as a synchronisation."""
    return {
        cell.rate: ring_bits() / (sum(cell.blocked) / (cell.syncs * len(cell.total)))
        for cell in alone()
    }


def ring_bits() -> float:
    """Return the number of bits that each node sends in a ring all-reduce."""
    return 2 * (NODES - 1) / NODES * BYTES * 8


def connect_seconds() -> float:
    """Return the extra seconds of a run's first synchronisation, as the median over the runs.

    The mean synchronisation of the same run is subtracted.
    """
    firsts: dict[float | None, list[float]] = {}
    for line in lines("diloco_first_sync.csv"):
        firsts.setdefault(rate_of(line), []).append(float(line["first_sync_s"]))
    return median(
        first - blocked / cell.syncs
        for cell in alone()
        for first, blocked in zip(firsts[cell.rate], cell.blocked, strict=True)
    )


# Cells.


def cells(without_connecting: bool = False) -> list[Cell]:
    """Return a cell for each measured time; the constants were fitted to the times with H = 1."""
    words = ("cluster.collectives.connect_seconds=0",) if without_connecting else ()
    return [cell_of(cell, *words) for cell in measured()]


def cells_by_law() -> list[Cell]:
    """Return the cells with H = 8 and 32 on limited links; rings achieve the rate of `achieved`."""
    return [
        cell_of(cell, f"cluster.collectives.all_reduce_bandwidth={achieved(cell.rate)}")
        for cell in measured()
        if cell.period > 1 and cell.rate is not None
    ]


def cell_of(cell: Measured, *words: str) -> Cell:
    first, last = cell.window
    steps = -(-(last + 1) // cell.period) * cell.period  # the last step ends a period
    settings: dict[str, Any] = {
        "experiment": "diloco_measured",
        "cluster": f"diloco_l40s{PROFILES[cell.rate]}",
        "algo.period": cell.period,
        "data.size": steps * NODES * 4,
    }
    asked = [*(f"{key}={value}" for key, value in settings.items()), *words]
    seconds = simulated(*asked, steps=(first, last))
    return Cell(cell.words, fmean(cell.total), seconds, fitted=cell.period == 1)
