#!/usr/bin/env python
"""Claims about formulas, without training: ``make claims`` re-evaluates them in minutes.

`claims.yaml` contains the ratios of simulated times or bytes, with tolerance bands; claim 1 is
computed from mixing matrices.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sgp_runner.jobs.job_pool import RunJob, run_all
from sgp_runner.studies.measures import number
from sgp_runner.topology.graphs import DirectedExponential, matrix
from sgp_runner.utils.reading import read_yaml

FILE = Path(__file__).with_suffix(".yaml")
Line = tuple[str, float, float, float]  # what, ratio, least, most


def unevenness(nodes: int) -> float:
    """Return the largest relative deviation of a weight from 1 / ``nodes``.

    The weights are those of one period of gossip on the one-peer exponential graph.
    """
    import numpy as np

    topology = DirectedExponential()
    mixed = np.eye(nodes)
    for step in range(topology.phases(nodes)[0][1]):
        mixed = np.array(matrix(topology, nodes, step)) @ mixed
    return float(np.abs(mixed * nodes - 1).max())


def averages() -> Iterator[Line]:
    """Yield claim 1: gossip averages exactly if and only if the node count is a power of two."""
    for nodes in (2, 4, 8, 16, 32, 64):
        yield f"1 unevenness of one period on {nodes} nodes", unevenness(nodes), 0.0, 0.0
    for nodes in (3, 5, 6, 7, 9, 10, 12, 15, 24, 33, 48, 63):
        yield f"1 unevenness of one period on {nodes} nodes", unevenness(nodes), 1e-9, inf


def ratios(claims: dict[str, Any], results: Path) -> Iterator[Line]:
    """Perform the runs of the claims in ``results`` and yield each ratio. Raises RuntimeError if a
    run fails.
    """
    sides: dict[str, RunJob] = {}
    for claim in claims.values():
        for case in claim["ratios"].values():
            for side in ("of", "over"):
                overrides = case[side] = f"{claim['settings']} {case[side]}"
                sides.setdefault(
                    overrides, RunJob(f"run{len(sides)}", tuple(overrides.split()), results)
                )
    for job, error in run_all(sides.values()):
        if error:
            raise RuntimeError(f"{job.command}: {error}")
    for name, claim in claims.items():
        key = claim.get("measure", "ms_per_iteration")
        for what, case in claim["ratios"].items():
            above, below = (number(sides[case[side]], key) for side in ("of", "over"))
            yield f"{name}: {what}", above / below, case.get("least", -inf), case.get("most", inf)


def main(file: Path = FILE) -> None:
    with TemporaryDirectory() as results:
        for what, ratio, least, most in (*averages(), *ratios(read_yaml(file), Path(results))):
            verdict = "holds" if least <= ratio <= most else "does not hold"
            print(f"{what}: {ratio:.4g} in [{least:g}, {most:g}]: {verdict}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
