"""All-reduces, sends and regions of AWS (``results/validation/``), and their simulated times.

The constants are in ``configs/cluster/aws_*.yaml``. `fits` finds them again, from all given cells:
the source's cells that were kept aside are not here, so the errors of these cells are those of a
fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from statistics import fmean, median
from typing import Any

import numpy as np

from sgp_runner.cluster.connection_laws import connection_rate
from sgp_runner.cluster.faults import Faults
from sgp_runner.cluster.hardware import Cluster
from sgp_runner.config.overrides import experiment_of
from sgp_runner.core.scheduler import VirtualClock
from sgp_runner.simulator.fabric import Fabric
from sgp_runner.utils.units import bit_rate
from validation.cells import Cell
from validation.diloco import lines

PROFILES = {"nccl": "aws_p3_10g", "gloo": "aws_p3_10g_gloo"}
# Bits of payload per bit of tc's rate; fitted on all cells with a rate.
SHARES = {"nccl": 0.985, "gloo": 0.99}
# Of the pairs of regions: bit/s of the slower link, and bytes in flight on 16 connections.
REGION_RATE, REGION_WINDOW = 1.11e9, 10.9e6


@dataclass(frozen=True)
class Timed:
    """A timed all-reduce or send.

    delay: seconds, one way. rate: bit/s of tc; None: not limited
    """

    operation: str
    library: str
    nodes: int
    delay: float
    rate: float | None
    num_bytes: float
    seconds: float

    @property
    def words(self) -> tuple[str, ...]:
        rate = "not limited" if self.rate is None else bit_rate(self.rate)
        size = f"{self.num_bytes / 2**20:g} MiB"
        return self.library, str(self.nodes), f"{1000 * self.delay:g} ms", rate, size


def timed(operation: str, library: str) -> list[Timed]:
    return [
        Timed(
            operation,
            library,
            int(line["nodes"]),
            float(line["netem_delay_ms"] or 0) / 1000,
            1e9 * float(line["gbit_per_s"]) if line["gbit_per_s"] else None,
            2**20 * float(line["mebibytes"]),
            float(line["seconds"]),
        )
        for line in lines("aws_collectives.csv")
        if (line["operation"], line["library"]) == (operation, library)
    ]


@cache
def profile(name: str) -> Cluster:
    return experiment_of(["model=timing_only", f"cluster={name}"]).run.cluster


def changed(cluster: Cluster, **groups: Mapping[str, Any]) -> Cluster:
    """Return the cluster with other settings in some of its groups."""
    parts = {name: replace(getattr(cluster, name), **new) for name, new in groups.items()}
    return replace(cluster, **parts)


def shaped(cluster: Cluster, cell: Timed, share: float) -> Cluster:
    """Return the cluster on links with the delay and ``share`` of the rate of a cell."""
    if cell.delay or cell.rate is not None:
        cluster = changed(cluster, links={"latency_seconds": cell.delay})
    if cell.rate is None:
        return cluster
    rate = share * cell.rate
    return changed(
        cluster,
        links={"bandwidth": min(rate, cluster.links.rate)},
        collectives={"all_reduce_bandwidth": rate},
    )


def seconds_of(cluster: Cluster, cell: Timed) -> float:
    """Return the simulated time of a cell on its links."""
    if cell.operation == "all_reduce":
        return cluster.all_reduce_seconds(cell.nodes, cell.num_bytes)
    fabric = Fabric(cluster.links, Faults(), VirtualClock(), 2, lambda sent: None)
    return cluster.links.latency_seconds + fabric.stream_seconds(0, 1, cell.num_bytes)


def old_law(cluster: Cluster) -> Cluster:
    """Return the cluster with a latency per round and no windows."""
    return changed(
        cluster,
        links={"window_bytes": 0, "first_window_bytes": 0},
        collectives={"library": None},
        hosts={"host_seconds_per_byte": 0.0},
    )


def cells(operation: str, library: str, old: bool = False) -> list[Cell]:
    """Return a cell for each time; ``old``: by the old law with tc's whole rate."""
    cluster, share = profile(PROFILES[library]), SHARES[library]
    if old:
        cluster, share = old_law(cluster), 1.0
    return [
        Cell(cell.words, cell.seconds, seconds_of(shaped(cluster, cell, share), cell), fitted=True)
        for cell in timed(operation, library)
    ]


def limited(cells: Sequence[Cell], yes: bool = True) -> list[Cell]:
    """Return the cells with a rate, or those without."""
    return [cell for cell in cells if (cell.what[3] != "not limited") == yes]


# Regions.


def region_rates(
    rate: float = REGION_RATE, window: float = REGION_WINDOW
) -> Iterator[tuple[str, str, float, float]]:
    """Yield receiver, sender, real and simulated bit/s of each pair of regions."""
    for line in lines("aws_regions.csv"):
        real, trip = 1e6 * float(line["nccl_mbit_per_s"]), float(line["round_trip_ms"]) / 1000
        yield line["receiver"], line["sender"], real, connection_rate(rate, trip, window)


def region_errors(rate: float = REGION_RATE, window: float = REGION_WINDOW) -> list[float]:
    """Return the errors in percent."""
    return [100 * (ours / real - 1) for *_, real, ours in region_rates(rate, window)]


# Fits.


def fit_regions() -> tuple[float, float]:
    """Return rate and window with the least median of absolute errors."""
    grid = product(np.arange(1.0e9, 1.2e9, 5e6), np.arange(8e6, 14e6, 1e5))
    return min(grid, key=lambda pair: median(map(abs, region_errors(*map(float, pair)))))


def fit(library: str) -> dict[str, float]:
    """Return the constants of a library with the least mean of absolute errors.

    The rates of all-reduces without a limit are fitted apart, by `fit_rate`.
    """
    grids = {
        "share": [0.98, 0.9825, 0.985, 0.9875, 0.99],
        "first_window_bytes": [2.0**power for power in range(16, 23)],
        "window_bytes": [0] if library == "nccl" else [2.7e6, 2.8e6, 2.9e6, 3.0e6, 3.1e6],
        "host_seconds_per_byte": [0.0] if library == "nccl" else [1.0e-9, 1.1e-9, 1.2e-9, 1.3e-9],
    }
    known = profile(PROFILES[library])
    found = [*timed("send", library), *timed("all_reduce", library)]
    found = [cell for cell in found if cell.operation == "send" or cell.rate is not None]

    def error(values: Sequence[float]) -> float:
        share, first_window, window, host = values
        cluster = changed(
            known,
            links={"first_window_bytes": first_window, "window_bytes": window},
            hosts={"host_seconds_per_byte": host},
        )
        return fmean(
            abs(seconds_of(shaped(cluster, cell, share), cell) / cell.seconds - 1) for cell in found
        )

    return dict(zip(grids, min(product(*grids.values()), key=error), strict=True))


def fit_rate(library: str) -> float:
    """Return the bit/s of all-reduces without a limit with the least largest error."""
    found = [cell for cell in timed("all_reduce", library) if cell.rate is None]
    rates = [16 * (c.nodes - 1) / c.nodes * c.num_bytes / c.seconds for c in found]
    return (min(rates) + max(rates)) / 2
