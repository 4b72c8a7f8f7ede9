"""Claims about averaging alone, computed from the mixing matrices: no run, no randomness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from claims.evidence import Between, Claim, Finding, Sample, exactly
from sgp_runner.topology.graphs import DirectedExponential, matrix

POWERS = (2, 4, 8, 16, 32, 64)
OTHERS = (3, 5, 6, 7, 9, 10, 12, 15, 24, 33, 48, 63)


def claims() -> Iterator[Claim]:
    yield Claim(
        number=1,
        subject="Exact averages on the exponential graph",
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
    what = (
        "{} nodes: largest difference between a node's weight in the average and 1/n, times n, "
        "after one period"
    )
    return [
        *(Finding(what.format(n), exactly(unevenness(n)), Between(0.0, 0.0)) for n in POWERS),
        *(Finding(what.format(n), exactly(unevenness(n)), Between(least=1e-9)) for n in OTHERS),
    ]


def unevenness(nodes: int) -> float:
    """Largest relative deviation from ``1 / nodes`` after one period of the one-peer graph."""
    import numpy as np

    topology = DirectedExponential()
    mixed = np.eye(nodes)
    for step in range(topology.phases(nodes)[0][1]):
        mixed = np.array(matrix(topology, nodes, step)) @ mixed
    return float(np.abs(mixed * nodes - 1).max())
