"""All-reduces of Gloo on our own links with delay, and the law's times.

The rate is that of the line without delay; the time of the host is that of AWS's machines.
"""

from __future__ import annotations

from sgp_runner.cluster.collective_laws import Library, ring_all_reduce
from sgp_runner.utils.units import bit_rate
from validation import aws
from validation.cells import Cell
from validation.diloco import lines


def measured() -> list[tuple[int, float, float, float, float]]:
    """Return ranks, delay in s, bit/s, bytes and seconds of our own measurements."""
    return [
        (
            int(line["ranks"]),
            float(line["delay_ms"]) / 1000,
            1e6 * float(line["mbit_per_s"]),
            2**20 * float(line["mebibytes"]),
            float(line["seconds"]),
        )
        for line in lines("gloo_delay.csv")
    ]


def rates() -> dict[tuple[int, float], float]:
    """Return the bit/s of rings without delay relative to the limit, by ranks and limit."""
    return {
        (ranks, limit): 16 * (ranks - 1) / ranks * size / seconds
        for ranks, delay, limit, size, seconds in measured()
        if not delay
    }


def cells(library: Library | None = "gloo") -> list[Cell]:
    """Return the times with delay, by the law of ``library``."""
    host = aws.profile(aws.PROFILES["gloo"]).hosts.host_seconds_per_byte if library else 0.0
    return [
        Cell(
            (str(ranks), bit_rate(limit), f"{size / 2**20:g} MiB", f"{1000 * delay:g} ms"),
            seconds,
            ring_all_reduce(
                library, ranks, size, delay, 8 * size / rates()[ranks, limit], host * size
            ),
        )
        for ranks, delay, limit, size, seconds in measured()
        if delay
    ]
