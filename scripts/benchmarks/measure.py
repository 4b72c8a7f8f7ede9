"""Measuring: interleaved repeats, medians with quartiles, ratios within a turn, goals as data.

The speed of a machine varies, so the alternatives take turns (A B C A B C ...) and a ratio is taken
within each turn.
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
    """Raised with a sentence that explains why a section cannot run here."""


@dataclass(frozen=True)
class Goal:
    """A bound on a median.

    relation: a key of `RELATIONS`. bound: bound in the unit of the result.
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

    unit: ``x`` for ratios. goal: bound on the median.
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
        """Lower and upper quartile by the inclusive method; a single value counts as both."""
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
    """Results shown together, with a text that explains them or their absence."""

    title: str
    results: tuple[Result, ...] = ()
    text: str = ""


def interleaved(
    things: Mapping[str, Callable[[], T]], repeats: int = REPEATS
) -> dict[str, tuple[T, ...]]:
    """Call all ``things`` in turns and return their results; a first turn is discarded."""
    for thing in things.values():
        thing()
    turns = [{name: thing() for name, thing in things.items()} for _ in range(repeats)]
    return {name: tuple(turn[name] for turn in turns) for name in things}


def seconds(work: Callable[[], object]) -> Callable[[], float]:
    """Return a function that calls ``work`` and returns the seconds that it took."""

    def timed() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return timed


def ratio(
    what: str, ours: Iterable[float], theirs: Iterable[float], goal: Goal | None = None
) -> Result:
    """Return the result of ``ours`` over ``theirs``, turn by turn."""
    return Result(
        what, "x", tuple(our / their for our, their in zip(ours, theirs, strict=True)), goal
    )


def machine() -> dict[str, object]:
    """Return the name and number of the processors and the load of the machine."""
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
    """Restore the facts and tables that `as_json` has serialised."""
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
