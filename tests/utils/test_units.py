from __future__ import annotations

import math

import pytest

from sgp_runner.utils.units import duration, num_bytes, number, percent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0123456, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (1.234, "1.23 s"),
        (41.26, "41.3 s"),
        (45.0, "45 s"),
        (59.96, "1 min 00 s"),
        (125.4, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (11220.0, "3 h 07 min"),
        (math.nan, "nan"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234567, "1.23 MB"),
        (999_600, "1 MB"),
        (34.5e9, "34.5 GB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert num_bytes(count) == text


def test_numbers() -> None:
    assert percent(0.9751) == "97.5 %"
    assert (number(3), number(0.5), number(True), number("3"), number(None)) == (
        3.0,
        0.5,
        None,
        None,
        None,
    )
