"""Sums that are bit-identical across versions of Python."""

from __future__ import annotations

from collections.abc import Iterable


def sum_in_order(values: Iterable[float]) -> float:
    """Return the sum of ``values``, added from left to right.

    The function `sum` compensates the rounding of floating-point numbers since Python 3.12, so its
    last bit depends on the version.
    """
    total: float = 0
    for value in values:
        total += value
    return total
