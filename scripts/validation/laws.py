"""Sections of the page on the laws of collectives and connections, with other people's figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from pages.settings import table
from sgp_runner.utils.units import bit_rate, num_bytes
from validation import aws, delays, scaling
from validation.cells import Cell, mean_and_worst

LAWS = """\
## Laws of networks with delay

Four laws (`sgp_runner.cluster.collective_laws` and `sgp_runner.cluster.connection_laws`) replace a
former law, in which each round of a ring costs one latency; for Gloo it was off by 40 %. The table
shows the mean and the worst error of each law. All published times were used in the fits, unless
this page calls them predicted; the fits were committed before the page was written. Commit 8f322df9
has the code of the fits, the errors of the former law, and how much each time depends on each
constant.

{errors}

- **NCCL** sends a chunk in slices. A round takes the time of a chunk, or of a latency and a slice
  if that is longer. On all of these links the chunk takes longer, so latency is hidden. With 4 and
  with 8 nodes, an all-reduce takes about two round trips more than the transfer of its bytes; with
  a latency per round, it would take 6 and 14 latencies more. The law describes this extra time by a
  share of the rate, slow start and the latency of the last byte.
- **Gloo** has at most two segments of 1 MiB in flight, and sends a segment only after the receiver
  has announced where to write it (this follows from Gloo's source). Two segments together take a
  round trip, the transfer of one segment and the host's time for it. One constant is fitted, the
  time of the host per byte. The law was derived from the source, and compared with [links of our
  own](#gloo-on-our-own-links-with-delay).
- **A window per round trip** bounds the sends of Gloo, with {window:.1f} MB in flight, and the
  transfers between regions. In a ring of Gloo the segments are the tighter bound.

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

Each job has one fitted row. The table shows seconds:

{scaling}

{scaling_predicted} The all-reduces of BERT-Large on 2 and 8 machines of 4 GPUs fit one ring over
all GPUs. ResNet-101 ran on as many machines as its fitted row, so it tests the rate, not the
ring. The periods of torchft include a part that does not depend on the rate.

INTELLECT-1 (arXiv 2412.01152) publishes the median all-reduce and the compute utilisation of 100
inner steps that take 38 minutes. If each outer step waits for its all-reduce, the simulated
utilisation is close to the published one:

{intellect}"""

INTELLECT = (("USA", 103, 95.7), ("USA and Europe", 382, 85.6), ("global", 469, 83.0))


def text() -> str:
    """Return the sections."""
    found = scaling.cells()
    errors = [abs(error) for error in aws.region_errors()]
    one = [abs(100 * (aws.REGION_RATE / real - 1)) for *_, real, _ in aws.region_rates()]
    return LAWS.format(
        errors=error_table(),
        window=aws.profile(aws.PROFILES["gloo"]).links.window_bytes / 1e6,
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
        for yes, which in ((True, "rate set"), (False, "rate not set")):
            cells = aws.limited(aws.cells(operation, library), yes)
            body.append((names[operation], library, which, str(len(cells)), *two(cells)))
    return table(body, ("", "library", "links", "times", "mean", "worst"))


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
        (*cell.what, f"{cell.real:.3f}", f"{cell.simulated:.3f}", percent(cell.error))
        for cell in delays.cells()
    ]
    return table(body, ("ranks", "rate", "size", "delay", "real", "simulated", "error"))


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
        )
        for cell in cells
    ]
    return table(body, ("", "real", "simulated", "error", ""))


def predicted(cells: Sequence[Cell]) -> str:
    found = [cell for cell in cells if not cell.fitted]
    mean, worst = two(found)
    return f"Errors of {len(found)} predicted times: **mean {mean}, worst {worst}**."


def intellect_table() -> str:
    inner = 38 * 60
    body = [
        (where, f"{seconds} s", f"{real:.1f} %", f"{100 * inner / (inner + seconds):.1f} %")
        for where, seconds, real in INTELLECT
    ]
    return table(body, ("peers", "all-reduce", "published", "simulated"))
