"""Our own slow networks (``results/benchmarks/``): steps predicted first, then measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from validation.cells import Cell
from validation.tcp import ROOT

BENCHMARKS = ROOT / "results" / "benchmarks"
BEFORE = ", simulated before"
NETWORK = re.compile(r"\d+ nodes, \d+ Mbit/s")


def cells(section: str) -> Iterator[Cell]:
    """Every cell of ``section``, network or imitated_network; none was fitted."""
    path = BENCHMARKS / f"{section}.json"
    for table in json.loads(path.read_text(encoding="utf-8"))["tables"]:
        if NETWORK.fullmatch(table["title"]):
            yield from cells_of(table)


def cells_of(table: Mapping[str, Any]) -> Iterator[Cell]:
    """The algorithms of one network, medians of their repeats in seconds."""
    results = {each["what"]: median(each["values"]) / 1000 for each in table["results"]}
    for what, seconds in results.items():
        if what.endswith(BEFORE):
            algorithm = what.removesuffix(BEFORE)
            yield Cell((table["title"], algorithm), results[algorithm], seconds)
