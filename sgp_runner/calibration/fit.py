"""Fit of a cluster's constants to measurements, with the leave-one-out error.

A message of ``b`` bytes takes ``latency + 8 b / bandwidth``. The fitted line passes exactly through
the median at the model's size, because runs send messages of this size. It fits the medians of
other sizes by least squares, weighted by the inverse square of their `spread`. For the
leave-one-out error, each size is predicted by the line fitted to all other sizes. The time to code
``n`` numbers is proportional to n; the fit is exact for the model's tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, median, quantiles

from sgp_runner.calibration.probe import Measured

TRUST = 0.02  # least relative uncertainty of a median
MIN_CV = 0.01  # smaller variation of compute times is ignored

Repeats = Mapping[int, Sequence[float]]  # bytes -> seconds


@dataclass(frozen=True)
class Line:
    """Seconds as a linear function of bytes, with ``start`` >= 0 and ``slope`` > 0."""

    start: float
    slope: float

    def __call__(self, num_bytes: float) -> float:
        return self.start + self.slope * num_bytes


def fit_line(measured: Repeats, through: int | None = None) -> Line:
    """Fit a line to at least two sizes, exact at the size ``through`` if it was measured.

    If latency or bandwidth would be negative, the line passes through the origin.
    """
    points = [(size, median(repeats), spread(repeats) ** -2) for size, repeats in measured.items()]
    total = sum(weight for _, _, weight in points)
    x = sum(weight * size for size, _, weight in points) / total
    y = sum(weight * seconds for _, seconds, weight in points) / total
    if through is not None and (repeats := measured.get(through)):
        x, y = float(through), median(repeats)
    across = sum(weight * (size - x) * (seconds - y) for size, seconds, weight in points)
    slope = across / sum(weight * (size - x) ** 2 for size, _, weight in points)
    if slope > 0 and y >= slope * x:
        return Line(y - slope * x, slope)
    return fit_proportion(measured, through)


def fit_proportion(measured: Repeats, through: int | None = None) -> Line:
    """Fit a line through the origin, exact at the size ``through`` if it was measured."""
    if through is not None and (repeats := measured.get(through)):
        return Line(0.0, median(repeats) / through)
    points = [(size, median(repeats), spread(repeats) ** -2) for size, repeats in measured.items()]
    across = sum(weight * size * seconds for size, seconds, weight in points)
    return Line(0.0, across / sum(weight * size**2 for size, _, weight in points))


def spread(repeats: Sequence[float]) -> float:
    """Return the uncertainty of the median of ``repeats`` in seconds.

    It is half the interquartile range divided by the square root of the number of repeats, but at
    least `TRUST` times the median.
    """
    low, _, high = (
        quantiles(repeats, n=4, method="inclusive") if len(repeats) > 1 else [repeats[0]] * 3
    )
    return max((high - low) / 2 / math.sqrt(len(repeats)), TRUST * median(repeats))


@dataclass(frozen=True)
class Point:
    """Measurements of one size.

    num_bytes: the size
    repeats: measured seconds
    fitted: seconds predicted by the fit
    left_out: seconds predicted by a fit without this size
    """

    num_bytes: int
    repeats: tuple[float, ...]
    fitted: float
    left_out: float

    @property
    def seconds(self) -> float:
        return median(self.repeats)

    @property
    def error(self) -> float:
        """The relative error of the prediction from a fit without this size."""
        return self.left_out / self.seconds - 1


def points_of(
    measured: Repeats, through: int, fit: Callable[[Repeats, int], Line] = fit_line
) -> list[Point]:
    """Return a point for each size; needs at least three sizes, or two for `fit_proportion`."""
    line = fit(measured, through)
    others = {size: fit(without(measured, size), through) for size in measured}
    return [
        Point(size, tuple(repeats), line(size), others[size](size))
        for size, repeats in measured.items()
    ]


def without(measured: Repeats, size: int) -> Repeats:
    return {other: repeats for other, repeats in measured.items() if other != size}


def leave_one_out(points: Sequence[Point]) -> float:
    """Return the mean absolute value of the points' relative errors."""
    return mean(abs(point.error) for point in points)


@dataclass(frozen=True)
class Constants:
    """The fitted constants of a `sgp_runner.cluster.hardware.Cluster`.

    cv: coefficient of variation of compute times; 0 for constant times
    """

    step_seconds: float
    cv: float
    latency_seconds: float
    bandwidth: float
    all_reduce_latency_seconds: float
    all_reduce_bandwidth: float
    overlap: float
    cores_per_host: float
    ranks_per_host: int
    passing_seconds_per_byte: float
    mixing_seconds_per_byte: float
    serving_seconds_per_byte: float
    encode_seconds: Mapping[str, float]
    decode_seconds: Mapping[str, float]


def constants(measurement: Measured) -> Constants:
    """Return the constants for which the simulator reproduces the measured times.

    If the ranks of a host share its cores, measured work is slower by a factor ``sharing``. The
    constants are for a rank alone, so they are divided by this factor.

    cv: value that reproduces the measured extra time of steps that end with a barrier
    all_reduce_latency_seconds, all_reduce_bandwidth: constants of a ring with the measured times by
        size; the latency is larger if the mean gradient took longer than predicted
    overlap: time saved by a step with the mean gradient, compared with a step of the slowest node
        followed by an all-reduce, as a fraction of the step time
    passing_seconds_per_byte: extra time of steps while messages pass, per byte in and out
    serving_seconds_per_byte: server time per answer, alone or under load, whichever is shorter
    encode_seconds, decode_seconds: time per number of the model's tensors, by codec
    """
    step, n = median(measurement.steps), measurement.nodes
    sharing = max(1.0, measurement.ranks_per_host / measurement.cores_per_host)
    messages = fit_line(measurement.exchanges, measurement.num_bytes)
    rings = fit_line(measurement.all_reduces, measurement.num_bytes)
    locked = median(measurement.locked_steps) - median(measurement.barriers)
    hosts = max(1, n // measurement.ranks_per_host) if sharing > 1 else n
    alike = measurement.ranks_per_host if sharing > 1 else 1  # ranks of a host, whose times add up
    cv = max(0.0, locked / step - 1) * math.sqrt(alike) / slowest(hosts) if hosts > 1 else 0.0
    turns = zip(
        measurement.busy_steps, measurement.quiet_steps, measurement.busy_bytes, strict=True
    )
    longer = max(0.0, median((busy - quiet) / num_bytes for busy, quiet, num_bytes in turns))
    passing, serving = longer / sharing, median(measurement.serving)
    saved = locked + rings(measurement.num_bytes) - median(measurement.mean_steps)
    return Constants(
        step_seconds=step / sharing,
        cv=cv if cv >= MIN_CV else 0.0,
        latency_seconds=messages.start,
        bandwidth=8 / messages.slope,
        all_reduce_latency_seconds=(rings.start + max(0.0, -saved)) / (2 * (n - 1)),
        all_reduce_bandwidth=16 * (n - 1) / n / rings.slope,
        overlap=min(max(0.0, saved / step), 0.99),
        cores_per_host=measurement.cores_per_host,
        ranks_per_host=measurement.ranks_per_host,
        passing_seconds_per_byte=passing,
        mixing_seconds_per_byte=median(measurement.mixing) / sharing / measurement.num_bytes,
        serving_seconds_per_byte=min(serving, median(measurement.streaming))
        / measurement.num_bytes,
        encode_seconds=per_number(measurement, measurement.encodes, sharing),
        decode_seconds=per_number(measurement, measurement.decodes, sharing),
    )


def per_number(
    measurement: Measured, measured: Mapping[str, Repeats], sharing: float
) -> dict[str, float]:
    """Return the seconds to code one number, by codec."""
    return {
        name: fit_proportion(repeats, measurement.model_works[name]).slope / sharing
        for name, repeats in measured.items()
    }


def slowest(n: int) -> float:
    """Return the expected maximum of ``n`` standard normal numbers (Blom 1958)."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))
