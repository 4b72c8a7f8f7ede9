"""Exact averages by gossip, computed from the mixing matrices without runs or randomness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from claims.computed import Computed
from claims.evidence import Finding
from sgp_runner.studies.statistics import Between, exactly
from sgp_runner.topology.graphs import DirectedExponential, matrix

POWERS = (2, 4, 8, 16, 32, 64)
OTHERS = (3, 5, 6, 7, 9, 10, 12, 15, 24, 33, 48, 63)
UNIT = "largest difference between a node's weight in the average and 1/n, times n"


def computed(results: Path) -> Computed:
    return Computed(find=find)


def find() -> Sequence[Finding]:
    return [
        Finding(
            "powers of two" if n in POWERS else "other numbers",
            f"{n} nodes, after one period",
            UNIT,
            exactly(unevenness(n)),
            Between(0.0, 0.0) if n in POWERS else Between(least=1e-9),
            primary=n == POWERS[-1],
        )
        for n in (*POWERS, *OTHERS)
    ]


def unevenness(nodes: int) -> float:
    """Return how unevenly one period of the one-peer graph averages.

    This is the largest relative deviation of a weight from ``1 / nodes``.
    """
    import numpy as np

    topology = DirectedExponential()
    mixed = np.eye(nodes)
    for step in range(topology.phases(nodes)[0][1]):
        mixed = np.array(matrix(topology, nodes, step)) @ mixed
    return float(np.abs(mixed * nodes - 1).max())
