"""Published times per iteration, and the simulated times in ``results/reproduced/report/``."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from validation.cells import Cell
from validation.tcp import ROOT

OURS = ROOT / "results" / "reproduced" / "report" / "published.csv"


def cells(paper: str) -> Iterator[Cell]:
    """Yield a cell for each timed row of ``paper`` (sgp or slowmo), in seconds per iteration."""
    with OURS.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["metric"] == "ms_per_iteration" and line["row"].startswith(f"{paper}_"):
                yield Cell(
                    (line["row"],),
                    float(line["published"]) / 1000,
                    float(line["ours"]) / 1000,
                    fitted="fitted" in line["ours_is"],
                )
