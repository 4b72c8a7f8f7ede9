"""A cluster profile for ``cluster=``: constants, and measured points as comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sgp_runner.calibration.fit import (
    Point,
    constants,
    fit_proportion,
    leave_one_out,
    points_of,
)
from sgp_runner.calibration.probe import Measured

BODY = """\
defaults:
  - /compute_time@compute_time: {law}

name: {name}
devices_per_node: 1
{compute_time}compute:
  step_seconds:  # s, a gradient and the optimizer's step, alone on a core
    {model}: {have.step_seconds:.6g}
  step_batch:  # samples per node
    {model}: {batch_size}
  input_seconds: 0.0  # s; part of the step
  node_factors: {{}}  # e.g. {{3: 2.0}}: node 3 computes half as fast
  heterogeneity: 0.0  # coefficient of variation between nodes
links:
  bandwidth: {have.bandwidth:.6g}bit/s  # every node sends and receives at the same time
  latency_seconds: {have.latency_seconds:.4g}s
  message_overhead_seconds: 0.0  # s; part of the latency
  duplex: full  # as the bandwidth was measured
  protocol: {protocol}  # of messages over this network
collectives:
  algorithm: ring  # gloo's and NCCL's for large tensors
  overlap: {have.overlap:.4g}  # share of a step during which its all-reduce runs already
  bucket_bytes: 1  # bytes; no bound, as the overlap is what was measured
  all_reduce_latency_seconds: {have.all_reduce_latency_seconds:.4g}s  # of each of its rounds
  all_reduce_bandwidth: {have.all_reduce_bandwidth:.6g}bit/s  # of a node's interface
hosts:
  host_seconds_per_byte: 0.0  # s/byte; part of the bandwidth
  cores_per_host: {have.cores_per_host:g}  # gradients that a host computes at full speed
  ranks_per_host: {have.ranks_per_host}
  passing_seconds_per_byte: {have.passing_seconds_per_byte:.4g}  # s/byte in or out, of a core
  mixing_seconds_per_byte: {have.mixing_seconds_per_byte:.4g}  # s/byte that is received, of a core
  serving_seconds_per_byte: {have.serving_seconds_per_byte:.4g}  # s/byte, gradient at a server
codecs:
  overlap: false  # coding and gradients take turns
  encode_seconds: {encode}
  decode_seconds: {decode}
validated:  # a run elsewhere says so
  fitted_on: []
  nodes: {nodes}
  bandwidth: {have.bandwidth:.6g}bit/s"""
COLUMN = {"low_rank": " and column of a factor"}
COMPUTE_TIME = """\
compute_time:
  cv: {:.4g}  # from the excess of steps that end with a barrier
"""


@dataclass(frozen=True)
class CalibratedSetting:
    """Description of a calibration: ``model`` on ``batch_size`` samples per node.

    command: the command line of the calibration
    protocol: message protocol, as in ``cluster.links.protocol``
    where, when: platform and time of the calibration, for a comment in the profile
    """

    name: str
    model: str
    batch_size: int
    protocol: str
    command: str
    where: str
    when: str


def profile(measurement: Measured, setting: CalibratedSetting) -> str:
    """Return the text of the profile."""
    return (
        "\n".join([*head(measurement, setting), body(measurement, setting), *foot(measurement)])
        + "\n"
    )


def head(measurement: Measured, setting: CalibratedSetting) -> Iterator[str]:
    yield f"# Measured by {setting.command}"
    yield f"# on {setting.where}, {setting.when}."
    yield f"# Valid for {measurement.nodes} nodes of these machines and for this model."
    yield "# Leave-one-out error, mean over sizes: messages {:.1%}, all-reduces {:.1%}.".format(
        *(
            leave_one_out(points_of(repeats, measurement.num_bytes))
            for repeats in (measurement.exchanges, measurement.all_reduces)
        )
    )


def body(measurement: Measured, setting: CalibratedSetting) -> str:
    have = constants(measurement)
    return BODY.format(
        law="log_normal" if have.cv else "constant",
        compute_time=COMPUTE_TIME.format(have.cv) if have.cv else "",
        have=have,
        encode=by_codec(have.encode_seconds),
        decode=by_codec(have.decode_seconds),
        name=setting.name,
        model=setting.model,
        protocol=setting.protocol,
        nodes=measurement.nodes,
        batch_size=setting.batch_size,
    )


def by_codec(seconds: Mapping[str, float]) -> str:
    """Return the seconds that each codec takes to code a number, one line per codec."""
    lines = [
        f"\n    {name}: {per_number:.4g}  # s/number{COLUMN.get(name, '')}"
        for name, per_number in seconds.items()
    ]
    return "".join(lines) or "{}"


def foot(measurement: Measured) -> Iterator[str]:
    for what, repeats in (
        ("message", measurement.exchanges),
        ("all-reduce", measurement.all_reduces),
    ):
        yield from (
            "",
            f"# {what}, bytes: median ms (range of repeats) | by the fit | without this size",
        )
        yield from map(line, points_of(repeats, measurement.num_bytes))
    yield from ("", f"# model of {measurement.num_bytes} bytes: median ms (range of repeats)")
    for what in (
        "steps",
        "barriers",
        "locked_steps",
        "mean_steps",
        "mixing",
        "serving",
        "streaming",
        "quiet_steps",
        "busy_steps",
    ):
        yield f"#   {what}: {summed_up(getattr(measurement, what))}"
    yield f"#   {median(measurement.busy_bytes):.4g} bytes pass in each of the busy steps"
    for what, measured in (("encode", measurement.encodes), ("decode", measurement.decodes)):
        for name, repeats in measured.items():
            points = points_of(repeats, measurement.model_works[name], fit_proportion)
            yield ""
            yield (
                f"# {what} {name}, numbers: median ms (range of repeats) | in proportion to the "
                f"model's {measurement.model_works[name]} | without this size, "
                f"mean error {leave_one_out(points):.1%}"
            )
            yield from map(line, points)


def line(point: Point) -> str:
    times = f"{summed_up(point.repeats)} | {ms(point.fitted)} | {ms(point.left_out)}"
    return f"#   {point.num_bytes}: {times}, {point.error:+.1%}"


def summed_up(repeats: Sequence[float]) -> str:
    span = f"{ms(min(repeats))} to {ms(max(repeats))} of {len(repeats)}"
    return f"{ms(median(repeats))} ({span})"


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.4g}"
