"""Measurements: interleaved repeats, medians with quartiles, ratios within a turn, and goals.

The speed of a machine varies, so the alternatives take turns (A B C A B C ...) and a ratio divides
two times from the same turn.
"""

from __future__ import annotations

import json
import operator
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

T = TypeVar("T")

REPEATS = 5
RELATIONS = {"at most": operator.le, "less than": operator.lt, "at least": operator.ge}


class Skipped(Exception):
    """An error whose sentence explains why a section cannot run here."""


@dataclass(frozen=True)
class Goal:
    """A bound on a median.

    relation: a key of `RELATIONS`. bound: a number in the unit of the result.
    """

    relation: str
    bound: float

    def met(self, value: float) -> bool:
        return bool(RELATIONS[self.relation](value, self.bound))

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"


@dataclass(frozen=True)
class Result:
    """One quantity with all its repeats in order.

    unit: ``x`` for ratios. goal: a bound on the median.
    """

    what: str
    unit: str
    values: tuple[float, ...]
    goal: Goal | None = None

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Lower and upper quartile by the inclusive method. A single value is both."""
        if len(self.values) == 1:
            return self.values[0], self.values[0]
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without a goal."""
        return None if self.goal is None else self.goal.met(self.median)


@dataclass(frozen=True)
class Table:
    """Results shown together; ``text`` explains them, or explains why there are none."""

    title: str
    results: tuple[Result, ...] = ()
    text: str = ""


def interleaved(
    things: Mapping[str, Callable[[], T]], repeats: int = REPEATS
) -> dict[str, tuple[T, ...]]:
    """Call all ``things`` in turns and return their results, except for the first turn."""
    for thing in things.values():
        thing()
    turns = [{name: thing() for name, thing in things.items()} for _ in range(repeats)]
    return {name: tuple(turn[name] for turn in turns) for name in things}


def seconds(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that calls ``work`` and returns the duration of the call in seconds."""

    def timed() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return timed


def ratio(
    what: str, ours: Iterable[float], theirs: Iterable[float], goal: Goal | None = None
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
    """Return the facts and tables from the text that `as_json` wrote."""
    facts = json.loads(text)
    return facts, [
        Table(table["title"], tuple(map(result, table["results"])), table["text"])
        for table in facts.pop("tables")
    ]


def result(fields: Mapping[str, Any]) -> Result:
    goal = fields["goal"]
    return Result(
        fields["what"],
        fields["unit"],
        tuple(fields["values"]),
        None if goal is None else Goal(**goal),
    )
