"""Our own slow networks (``results/benchmarks/``): predicted and then measured step times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

from validation.cells import Cell
from validation.tcp import ROOT

BENCHMARKS = ROOT / "results" / "benchmarks"
BEFORE = ", simulated before"
NETWORK = re.compile(r"\d+ nodes, \d+ Mbit/s")


def cells(section: str) -> Iterator[Cell]:
    """Yield the cells of ``section``, which is ``network`` or ``imitated_network``.

    No constant was fitted to their times.
    """
    for table in tables(section):
        if table["results"]:
            yield from cells_of(table)


def tables(section: str) -> Iterator[Mapping[str, Any]]:
    """Yield the table of each network."""
    path = BENCHMARKS / f"{section}.json"
    for table in json.loads(path.read_text(encoding="utf-8"))["tables"]:
        if NETWORK.fullmatch(table["title"]):
            yield table


def with_rendezvous(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of section ``network``, simulated with a rendezvous of messages.

    The law was found in the recordings of these cells.
    """
    simulated = {
        (table["title"], each["what"]): each["values"][0] / 1000
        for table in tables("rendezvous")
        for each in table["results"]
    }
    return [replace(cell, simulated=simulated[cell.what]) for cell in cells]


def cells_of(table: Mapping[str, Any]) -> Iterator[Cell]:
    """Yield a cell for each algorithm on one network.

    The real time is the median of the repeats. Times are in seconds.
    """
    results = {each["what"]: [ms / 1000 for ms in each["values"]] for each in table["results"]}
    for what, (seconds, *_) in results.items():
        if what.endswith(BEFORE):
            algorithm = what.removesuffix(BEFORE)
            repeats = results[algorithm]
            yield Cell((table["title"], algorithm), median(repeats), seconds, repeats=repeats)


def left_out(section: str) -> Iterator[str]:
    """Yield a sentence for each network without results."""
    for table in tables(section):
        if not table["results"]:
            yield f"{table['title']}: {table['text']}"


def right_pairs(cells: Sequence[Cell]) -> tuple[int, int]:
    """Return the number of pairs in the right order, and the number of all pairs.

    A pair is two algorithms on the same network whose real times differ by more than 5 %.
    """
    orders = [
        (one.real < other.real) == (one.simulated < other.simulated)
        for one, other in combinations(cells, 2)
        if one.what[0] == other.what[0]
        and max(one.real, other.real) > 1.05 * min(one.real, other.real)
    ]
    return sum(orders), len(orders)
