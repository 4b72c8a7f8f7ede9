"""Claims about averaging, computed from the mixing matrices without runs or randomness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from claims.evidence import Claim, Finding, Sample
from sgp_runner.studies.statistics import Between, exactly
from sgp_runner.topology.graphs import DirectedExponential, matrix

POWERS = (2, 4, 8, 16, 32, 64)
OTHERS = (3, 5, 6, 7, 9, 10, 12, 15, 24, 33, 48, 63)


def claims() -> Iterator[Claim]:
    yield Claim(
        number=1,
        subject="Exact averages by gossip",
        sentence=(
            "Pure averaging on the directed exponential graph is exact after log2(n) steps for n = "
            "2^m nodes, and not for other n."
        ),
        answer="Yes, exactly.",
        source="Assran et al. 2019",
        tried=(
            "The product of the mixing matrices of one period. Its entries are multiples of a "
            "power of 1/2, which floats hold exactly."
        ),
        samples=(Sample(jobs=lambda: (), find=find),),
    )


def find() -> Sequence[Finding]:
    what = "{} nodes, after one period"
    unit = "largest difference between a node's weight in the average and 1/n, times n"
    exact = [
        Finding(
            "powers of two",
            what.format(n),
            unit,
            exactly(unevenness(n)),
            Between(0.0, 0.0),
            primary=n == POWERS[-1],
        )
        for n in POWERS
    ]
    others = [
        Finding("other numbers", what.format(n), unit, exactly(unevenness(n)), Between(least=1e-9))
        for n in OTHERS
    ]
    return [*exact, *others]


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
