"""The order of the rows of a table, by quality and by time: published and in our runs.

Tables of six rows or more have Kendall's rank correlation (tau-b, which allows for ties): 1 for the
same order, -1 for the opposite order, about 0 for unrelated orders. For smaller tables, the text
lists the pairs of rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import atanh, sqrt, tanh
from pathlib import Path

ENOUGH = 6  # rows for a rank correlation
NORMAL = 1.959964  # half width of a 95 % interval of the normal distribution
STATED = Path(__file__).resolve().parents[2] / "results" / "paper" / "orderings.csv"


@dataclass(frozen=True)
class Ordering:
    """The order of two rows, stated by a paper in words, without numbers.

    measure: loss (at the end of training) or time (per iteration)
    """

    paper: str
    measure: str
    better: str
    worse: str
    statement: str
    source: str


def stated(path: Path = STATED) -> Iterator[Ordering]:
    """Yield the orderings in a file that has a column for each field."""
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            yield Ordering(**line)


def tau(published: Sequence[float], ours: Sequence[float]) -> float:
    """Return Kendall's tau-b of two lists of the same rows; nan if a list is constant."""
    from scipy.stats import kendalltau

    return float(kendalltau(published, ours).statistic)


def interval(value: float, rows: int) -> tuple[float, float]:
    """Return the 95 % interval of a tau: Fisher's z with the variance 0.437 / (rows - 4).

    The variance is from Fieller, Hartley and Pearson (1957). It treats rows as a random sample, so
    the interval is wide. A tau of 1 has no finite z and is replaced by a tau that is half a pair
    smaller.
    """
    short = 2 / (rows * (rows - 1))
    z = atanh(min(max(value, short - 1), 1 - short))
    reach = NORMAL * sqrt(0.437 / (rows - 4))
    return tanh(z - reach), tanh(z + reach)


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """Return the rank of each row, 1 for the lowest value; equal values share the lower rank."""
    ordered = sorted(values.values())
    return {row: ordered.index(value) + 1 for row, value in values.items()}


def agreement(published: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """Describe in words how well the order of our values agrees with the published order."""
    rows = list(published)
    if len(rows) < ENOUGH:
        return pairs(published, ours)
    value = tau([published[row] for row in rows], [ours[row] for row in rows])
    low, high = interval(value, len(rows))
    return f"Kendall's tau {value:.2f} (95 %: {low:.2f} to {high:.2f}, {len(rows)} rows)"


def pairs(published: Mapping[str, float], ours: Mapping[str, float]) -> str:
    """Return how many pairs of rows have the published order, and name the other pairs.

    Pairs with equal published values do not count.
    """
    different = [(a, b) for a, b in combinations(published, 2) if published[a] != published[b]]
    turned = [
        (a, b) for a, b in different if (published[a] - published[b]) * (ours[a] - ours[b]) <= 0
    ]
    tally = f"{len(different) - len(turned)} of {len(different)} pairs in the published order"
    names = ", ".join(f"{a} and {b}" for a, b in turned)
    return f"{tally}; not {names}" if turned else tally
