from __future__ import annotations

import math

import pytest

from sgp_runner.utils.units import (
    BITS_PER_SECOND,
    BYTES,
    MINUTES,
    SECONDS,
    Unit,
    bit_rate,
    counted,
    duration,
    num_bytes,
    number,
    percent,
)


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


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        (BITS_PER_SECOND, "100Mbit/s", 100e6),
        (BITS_PER_SECOND, "2.5 Gbps", 2.5e9),
        (BITS_PER_SECOND, "12.5MB/s", 100e6),
        (SECONDS, "1ms", 1e-3),
        (SECONDS, "50us", 50e-6),  # 50 * 1e-6 is another number
        (SECONDS, "50µs", 50e-6),
        (SECONDS, "2e-3s", 2e-3),
        (SECONDS, "1.5h", 5400),
        (MINUTES, "10s", 1 / 6),
        (MINUTES, "2h", 120),
        (BYTES, "25MB", 25_000_000),
        (BYTES, "25MiB", 26_214_400),
        (SECONDS, "1MB", None),
        (SECONDS, "10 sec", None),
        (SECONDS, "-1ms", None),
        (SECONDS, "1e999s", None),
        (SECONDS, "ms", None),
    ],
)
def test_numbers_with_a_unit(unit: Unit, text: str, value: float | None) -> None:
    assert unit.number(text) == value


def test_counts() -> None:
    assert [counted(count, "epoch") for count in (0, 0.5, 1, 1.0, 8)] == [
        "0 epochs",
        "0.5 epochs",
        "1 epoch",
        "1 epoch",
        "8 epochs",
    ]
    assert [counted(count, "process", "processes") for count in (1, 2)] == [
        *("1 process", "2 processes")
    ]


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1e10, "10 Gbit/s"), (1.25e7, "12.5 Mbit/s"), (999.0, "999 bit/s"), (0.5, "0.5 bit/s")],
)
def test_bandwidths_in_words(rate: float, text: str) -> None:
    assert bit_rate(rate) == text
