"""Measurements: interleaved repeats, medians with quartiles, ratios within a turn, and goals.

The speed of a machine varies, so the alternatives take turns (A B C A B C ...) and a ratio divides
two times from the same turn.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

T = TypeVar("T")

REPEATS = 5


class Skipped(Exception):
    """A section cannot run here; the message explains why."""


@dataclass(frozen=True)
class Result:
    """A quantity with all its repeats, in order.

    unit: ``x`` for ratios. goal: the largest acceptable median, in the same unit.
    """

    what: str
    unit: str
    values: tuple[float, ...]
    goal: float | None = None

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Lower and upper quartile by the inclusive method. A single value is both."""
        values = self.values * 2 if len(self.values) == 1 else self.values
        low, _, high = quantiles(values, n=4, method="inclusive")
        return low, high

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without a goal."""
        return None if self.goal is None else self.median <= self.goal


@dataclass(frozen=True)
class Table:
    """Results shown together; ``text`` explains them, or explains why there are none.

    is_matrix: show the ratios "a / b" in a row for each a and a column for each b
    """

    title: str
    results: tuple[Result, ...] = ()
    text: str = ""
    is_matrix: bool = False


def interleaved(
    things: Mapping[str, Callable[[], T]], repeats: int = REPEATS
) -> dict[str, tuple[T, ...]]:
    """Call all ``things`` in turns and return their results, discarding the first turn."""
    turns = [{name: thing() for name, thing in things.items()} for _ in range(repeats + 1)]
    return {name: tuple(turn[name] for turn in turns[1:]) for name in things}


def ratio(
    what: str, ours: Iterable[float], theirs: Iterable[float], goal: float | None = None
) -> Result:
    """Return the ratio of ``ours`` to ``theirs`` in each turn."""
    return Result(
        what, "x", tuple(our / their for our, their in zip(ours, theirs, strict=True)), goal
    )


def machine() -> dict[str, object]:
    """Return the processor name, the number of cores and the load of the machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "processor": next(names, platform.processor()),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def as_json(tables: Iterable[Table], facts: Mapping[str, object]) -> str:
    """Serialise ``facts`` and ``tables`` with every repeat."""
    return json.dumps({**facts, "tables": [asdict(table) for table in tables]}, indent=1) + "\n"


def from_json(text: str) -> tuple[dict[str, Any], list[Table]]:
    """Return the facts and tables from text written by `as_json`."""
    facts = json.loads(text)
    tables = facts.pop("tables")
    for table in tables:
        results = [{**row, "values": tuple(row["values"])} for row in table["results"]]
        table["results"] = tuple(Result(**row) for row in results)
    return facts, [Table(**table) for table in tables]
