"""Sections of the page on the laws of collectives and connections, with other people's figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from pages.settings import table
from sgp_runner.cluster.collective_laws import (
    GLOO_SEGMENT,
    NCCL_SLICE,
    pipelined_ring,
    segmented_ring,
)
from sgp_runner.utils.units import bit_rate, num_bytes
from validation import aws, delays, scaling
from validation.cells import Cell, mean_and_worst
from validation.diloco import lines

LAWS = """\
## Laws of networks with delay

Four laws (`sgp_runner.cluster.collective_laws` and `sgp_runner.cluster.connection_laws`) replace an
old law, in which each round of a ring costs one latency. The table shows the mean and the worst
error of each law, and of the old law with the whole rate of the link. All published times were used
in the fits, unless this page calls them predicted; the fits were committed before the page was
written.

{errors}

- **NCCL** sends a chunk in slices. A round takes the time of a chunk, or of a latency and a slice
  if that is longer. On all of these links the chunk takes longer, so latency is hidden. With 4 and
  with 8 nodes, an all-reduce takes about two round trips more than the transfer of its bytes; with
  a latency per round, it would take 6 and 14 latencies more. The law describes this extra time by a
  share of the rate, slow start and the latency of the last byte.
- **Gloo** has at most two segments of 1 MiB in flight, and sends a segment only after the receiver
  has announced where to write it (this follows from Gloo's source). Two segments together take a
  round trip, the transfer of one segment and the host's time for it. One constant is fitted, the
  time of the host per byte; with 0 the mean error is {gloo_without:.1f} %, so the round trip of two
  segments explains most of the old law's 40 %. The law was derived from the source, and compared
  with [links of our own](#gloo-on-our-own-links-with-delay).
- **A window per round trip** bounds the sends of Gloo, with {window:.1f} MB in flight, and the
  transfers between regions. In a ring of Gloo the segments are the tighter bound.

### What the published times can tell

The table shows the largest change of a published time, in percent, if a constant is halved or
doubled. A constant with small numbers in all columns cannot be fitted to these times.

{tells}

The slice of NCCL and the segment of Gloo are taken from the sources of the libraries. Slices from
64 KiB to 4 MiB give the same figures. No time is of a small message, for which NCCL uses trees; the
law for these is assumed. Times on two machines cannot distinguish a ring over devices from a ring
over nodes, but times on two and on eight machines can.

## AWS machines, measured by others

Machines with one V100 each ran all-reduces and sends by NCCL and Gloo, on links with and without a
rate limit and a delay set by tc ([sources](../results/validation/README.md)). The profiles are
`aws_p3_10g` and `aws_p3_10g_gloo`. tc's rate is multiplied by {nccl_share} for NCCL and by
{gloo_share} for Gloo. The delay is one way. The table shows milliseconds; all times were used in
the fits:

{aws}

The times with 16 and 32 nodes are not used here, and none of the errors is the error of a
prediction. At delays of 5 and 10 ms, the errors of Gloo's rings are lower with 8 nodes than with 4.
With more nodes, such rings may therefore take longer than simulated.

### Gloo on our own links with delay

The script `scripts/gloo_delay.py` of commit 1d9c4c76 ran all-reduces of Gloo between network
namespaces of one machine, whose packets a relay delays. Other programs ran on the machine, but the
links determine these times: without delay the rings achieved {delay_share:.0f} % of the rate. Each
prediction uses the rate measured without delay; nothing else is fitted here. The table shows
seconds, medians of three:

{delays}

Two ranks have one connection for both directions, and their announcements wait behind the segment
that is being sent. This rule was found in these measurements. The periods of torchft (below) had
been compared before: without the rule, their error at 1 Gbit/s was +6.4 %. Four ranks on these slow
links do not test the round trip, because a latency per round gives nearly the same time.

## Ten regions of AWS, measured by others

NCCL sent between machines in ten regions, on 16 connections. The rate of a link, {region_rate:.2f}
Gbit/s, and the bytes in flight, {region_window:.1f} MB, are fitted to 45 of the 90 ordered pairs.
Errors of the rates: **median {region_median:.1f} %, mean {region_mean:.1f} %**; with one rate for
all pairs, the median is {region_one:.1f} %. These pairs are off by more than 30 %:

{regions}

All of them end in Oregon, which received less than it sent at the same round trip; a law of round
trips cannot tell the two directions apart.

## Jobs on several GPUs, published rows

Each job has one fitted row. The old law is a ring over nodes with a latency per round, fitted to
the same row. The table shows seconds:

{scaling}

{scaling_predicted} By the old law: mean {scaling_old[0]:.1f} %, worst {scaling_old[1]:.1f} %. The
all-reduces of BERT-Large on 2 and 8 machines of 4 GPUs fit one ring over all GPUs. ResNet-101 ran
on as many machines as its fitted row, so it tests the rate, not the ring. The periods of torchft
include a part that does not depend on the rate.

These rows are shown and not scored, because nothing was predicted for them:

{shown}

INTELLECT-1 (arXiv 2412.01152) publishes the median all-reduce and the compute utilisation of 100
inner steps that take 38 minutes. If each outer step waits for its all-reduce, the simulated
utilisation is close to the published one:

{intellect}"""

INTELLECT = (("USA", 103, 95.7), ("USA and Europe", 382, 85.6), ("global", 469, 83.0))
CHANGES = (0.5, 2.0)


def text() -> str:
    """Return the sections."""
    found = scaling.cells()
    errors = [abs(error) for error in aws.region_errors()]
    one = [abs(100 * (aws.REGION_RATE / real - 1)) for *_, real, _ in aws.region_rates()]
    return LAWS.format(
        errors=error_table(),
        gloo_without=gloo_without_host(),
        window=aws.profile(aws.PROFILES["gloo"]).links.window_bytes / 1e6,
        tells=tell_table(),
        nccl_share=aws.SHARES["nccl"],
        gloo_share=aws.SHARES["gloo"],
        aws=aws_table(),
        delays=delay_table(),
        delay_share=100 * fmean(rate / limit for (_, limit), rate in delays.rates().items()),
        region_rate=aws.REGION_RATE / 1e9,
        region_window=aws.REGION_WINDOW / 1e6,
        region_median=median(errors),
        region_mean=fmean(errors),
        region_one=median(one),
        regions=region_table(),
        scaling=scaling_table(found),
        scaling_predicted=predicted(found),
        scaling_old=mean_and_worst(cell.error for cell in scaling.old_cells() if not cell.fitted),
        shown=shown_table(),
        intellect=intellect_table(),
    )


def rows() -> list[tuple[str, ...]]:
    """Return the lines of the page's first table: profile, range, times, errors, fitted."""
    lines = []
    for library, name in aws.PROFILES.items():
        cells = [*aws.cells("all_reduce", library), *aws.cells("send", library)]
        lines.append(row(name, cells, "share, rates, windows" + (", host" * (library == "gloo"))))
    errors = [abs(error) for error in aws.region_errors()]
    mean, worst = f"{fmean(errors):.1f} %", f"{max(errors):.1f} %"
    lines.append(
        (
            "`aws_10_regions`",
            "nccl",
            "10",
            "1.11 Gbit/s",
            "",
            "45 fitted",
            mean,
            worst,
            "rate, window",
        )
    )
    lines.append(row("bert_40g", scaling.bert(), "rate"))
    lines.append(row("p3_16xlarge_25g", scaling.resnet(), "rate"))
    return lines


def row(name: str, cells: Sequence[Cell], fitted: str) -> tuple[str, ...]:
    """Return a line of the first table; if no time is predicted, with the fitted times."""
    cluster, found = aws.profile(name), [cell for cell in cells if not cell.fitted]
    count = f"{len(found)}" if found else f"{len(cells)} fitted"
    limits, library = cluster.validated, cluster.collectives.library or ""
    size, rate = num_bytes(limits.most_bytes or 0), bit_rate(cluster.links.rate)
    errors = two(found or cells)
    return (f"`{name}`", library, str(limits.nodes), rate, size, count, *errors, fitted)


def two(cells: Sequence[Cell]) -> tuple[str, str]:
    mean, worst = mean_and_worst(cell.error for cell in cells)
    return f"{mean:.1f} %", f"{worst:.1f} %"


def error_table() -> str:
    body = []
    names = {"all_reduce": "all-reduce", "send": "send"}
    for operation, library in (
        *(("all_reduce", "nccl"), ("all_reduce", "gloo")),
        *(("send", "nccl"), ("send", "gloo")),
    ):
        new, old = (aws.cells(operation, library, law) for law in (False, True))
        for yes, which in ((True, "rate set"), (False, "rate not set")):
            cells = aws.limited(new, yes)
            row = (names[operation], library, which, str(len(cells)))
            body.append((*row, *two(cells), *two(aws.limited(old, yes))))
    head = ("", "library", "links", "times", "mean", "worst", "old mean", "old worst")
    return table(body, head)


def gloo_without_host() -> float:
    """Return the mean error of Gloo's rings with a rate, if the host takes no time."""
    cluster, share = aws.profile(aws.PROFILES["gloo"]), aws.SHARES["gloo"]
    cluster = aws.changed(cluster, hosts={"host_seconds_per_byte": 0.0})
    cells = [cell for cell in aws.timed("all_reduce", "gloo") if cell.rate is not None]
    return fmean(
        abs(100 * (aws.seconds_of(aws.shaped(cluster, cell, share), cell) / cell.seconds - 1))
        for cell in cells
    )


def aws_table() -> str:
    cells = [
        (name, cell)
        for operation, name in (("all_reduce", "all-reduce"), ("send", "send"))
        for library in aws.PROFILES
        for cell in aws.cells(operation, library)
    ]
    body = [
        (
            name,
            *cell.what,
            f"{1e3 * cell.real:g}",
            f"{1e3 * cell.simulated:.4g}",
            percent(cell.error),
        )
        for name, cell in cells
    ]
    head = ("", "library", "nodes", "delay", "rate", "size", "real", "simulated", "error")
    return table(body, head)


def delay_table() -> str:
    body = [
        (
            *cell.what,
            f"{cell.real:.3f}",
            f"{cell.simulated:.3f}",
            percent(cell.error),
            percent(old.error),
        )
        for cell, old in zip(delays.cells(), delays.cells(None), strict=True)
    ]
    head = ("ranks", "rate", "size", "delay", "real", "simulated", "error", "old law")
    return table(body, head)


def percent(error: float) -> str:
    return f"{round(error, 1) + 0.0:+.1f} %"  # no minus zero


def region_table() -> str:
    body = [
        (
            sender,
            receiver,
            f"{real / 1e6:.0f}",
            f"{ours / 1e6:.0f}",
            f"{100 * (ours / real - 1):+.0f} %",
        )
        for receiver, sender, real, ours in aws.region_rates()
        if abs(ours / real - 1) > 0.3
    ]
    return table(body, ("from", "to", "real, Mbit/s", "simulated", "error"))


def scaling_table(cells: Sequence[Cell]) -> str:
    body = [
        (
            *cell.what,
            f"{cell.real:.4g}",
            f"{cell.simulated:.4g}",
            percent(cell.error),
            "fitted" if cell.fitted else "",
            percent(old.error),
        )
        for cell, old in zip(cells, scaling.old_cells(), strict=True)
    ]
    return table(body, ("", "real", "simulated", "error", "", "old law"))


def predicted(cells: Sequence[Cell]) -> str:
    found = [cell for cell in cells if not cell.fitted]
    mean, worst = two(found)
    return f"Errors of {len(found)} predicted times: **mean {mean}, worst {worst}**."


def shown_table() -> str:
    """Return the rows that no cell uses."""
    body = [
        (
            line["model"].partition(",")[0],
            f"{line['nodes']} x {line['gpus_per_node']}",
            line["network"],
            line["quantity"],
            f"{float(line['value']):g} {line['unit']}",
            line["source"].partition(",")[0],
        )
        for line in lines("scaling.csv")
        if not used(line)
    ]
    return table(body, ("model", "GPUs", "network", "", "published", "source"))


def used(line: Mapping[str, str]) -> bool:
    """Return whether a cell of `scaling` needs a row."""
    if "2102.02888" in line["source"]:
        ethernet = "Ethernet" in line["network"] and line["nodes"] != "1"
        return ethernet and line["quantity"] == "all-reduce"
    if "ft-diloco" in line["source"]:
        return line["quantity"] == "outer period, H = 1"
    return "issue 396" in line["source"] and line["gpus_per_node"] == "8"


def intellect_table() -> str:
    inner = 38 * 60
    body = [
        (where, f"{seconds} s", f"{real:.1f} %", f"{100 * inner / (inner + seconds):.1f} %")
        for where, seconds, real in INTELLECT
    ]
    return table(body, ("peers", "all-reduce", "published", "simulated"))


def tell_table() -> str:
    """Return the largest change of the given times, by constant and by set of cells."""
    body = []
    for constant, library in (
        *(("rate", "nccl"), ("latency", "nccl"), ("slice", "nccl"), ("first window", "nccl")),
        *(("rate", "gloo"), ("latency", "gloo"), ("segment", "gloo"), ("first window", "gloo")),
        *(("window", "gloo"), ("host", "gloo")),
    ):
        rings = [cell for cell in aws.timed("all_reduce", library) if cell.rate is not None]
        sends = aws.timed("send", library)
        body.append(
            (
                library,
                constant,
                f"{max(change(cell, constant) for cell in rings):.1f} %",
                f"{max(change(cell, constant) for cell in sends):.1f} %",
            )
        )
    return table(body, ("library", "constant", "all-reduces with a rate", "sends"))


def change(cell: aws.Timed, constant: str) -> float:
    """Return the larger change of a simulated time, in percent."""
    before = altered(cell, constant, 1.0)
    return max(abs(100 * (altered(cell, constant, by) / before - 1)) for by in CHANGES)


def altered(cell: aws.Timed, constant: str, by: float) -> float:
    """Return the simulated time of a cell with one constant multiplied by ``by``."""
    cluster = aws.shaped(aws.profile(aws.PROFILES[cell.library]), cell, aws.SHARES[cell.library])
    keys = {
        "rate": {"links": "bandwidth", "collectives": "all_reduce_bandwidth"},
        "latency": {"links": "latency_seconds"},
        "first window": {"links": "first_window_bytes"},
        "window": {"links": "window_bytes"},
        "host": {"hosts": "host_seconds_per_byte"},
    }
    if constant in keys:
        new = {
            group: {key: by * getattr(getattr(cluster, group), key)}
            for group, key in keys[constant].items()
        }
        return aws.seconds_of(aws.changed(cluster, **new), cell)
    seconds = aws.seconds_of(cluster, cell)
    if cell.operation == "send":
        return seconds
    return seconds + ring_of(cell, cluster, by) - ring_of(cell, cluster, 1.0)


def ring_of(cell: aws.Timed, cluster: aws.Cluster, by: float) -> float:
    """Return the time of a ring without slow start, with another slice or segment."""
    rounds, chunk = 2 * (cell.nodes - 1), cell.num_bytes / cell.nodes
    rate = cluster.collectives.all_reduce_bandwidth or cluster.links.rate
    each, latency = 8 / rate, cluster.links.latency_seconds
    if cell.library == "nccl":
        return pipelined_ring(rounds, chunk * each, latency, by * NCCL_SLICE * each)
    size = by * GLOO_SEGMENT
    host = size * cluster.hosts.host_seconds_per_byte
    return segmented_ring(rounds, chunk / size, size * each, latency, host)
