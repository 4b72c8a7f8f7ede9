"""The sources of real times, and a picture of simulated against real times for all sources."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from math import log
from statistics import median

from validation.cells import CELLS, cells, mean_and_worst

OWN = CELLS.parents[1] / "benchmarks"
ALGORITHMS = ("AR-SGD", "D-PSGD", "AD-PSGD", "SGP", "OSGP", "SlowMo", "Gap-Aware", "Pipe-SGD")
WIDTH, LEFT, RIGHT, ROW, TOP = 720, 250, 16, 23, 84
EDGE = 1.6  # largest ratio in the picture
FITTED, PREDICTED, MISSED, TEXT = "#9aa0a6", "#2f9e6e", "#d9480f", "#808080"  # light and dark pages
GOOD = 10.0  # percent; a source with a larger mean is called missed


@dataclass(frozen=True)
class Source:
    """Real times of one kind.

    title: as on the page
    table: a table of cells.csv, or a folder of our own measurements
    cells: pattern for the cells, or for our own algorithms
    profile: value of ``cluster=``
    fitted: fitted constants of the profile, and the data they are fitted to
    """

    title: str
    table: str
    cells: str = ""
    profile: str = ""
    fitted: str = ""


SOURCES = (
    Source("DiLoCo on four L40S", "diloco", "", "diloco_l40s*", "step, rates, connecting: H = 1"),
    Source("SGP's paper", "sgp", "", "sgp_ethernet", "gradient, host, duplex: 3 rows"),
    Source("SlowMo's paper", "slowmo", "", "slowmo_ethernet*", "gradients, rate, input: 4 rows"),
    Source("AWS, NCCL, tc's rate", "rings", r"bit/s; nccl", "aws_p3_10g", "share: all"),
    Source("AWS, NCCL, AWS's rate", "rings", r"limited; nccl", "aws_p3_10g", "rate: all"),
    Source("the same with 16 nodes", "rings16", "nccl", "aws_p3_10g", "on 4 and 8 nodes"),
    Source(
        "AWS, Gloo, 4 nodes", "rings", r"^4;.*gloo", "aws_p3_10g_gloo", "rates, host, delay: all"
    ),
    Source("AWS, Gloo, 8 nodes, tc's rate", "rings", r"^8;.*bit/s; gloo", "aws_p3_10g_gloo"),
    Source("AWS, Gloo, 16 nodes", "rings16", "gloo", "aws_p3_10g_gloo"),
    Source("AWS, sends", "sends", "", "aws_p3_10g, _gloo", "rates, windows: all"),
    Source(
        "AWS, script, 4 nodes",
        "script",
        "4 nodes",
        "aws_p3_10g_training",
        "rates, window: all",
    ),
    Source("AWS, script, 8 nodes", "script", "8 nodes", "aws_p3_10g_training", "on 4 nodes"),
    Source("ten regions of AWS", "regions", "", "aws_10_regions", "rate, windows: 5 senders"),
    Source("BERT-Large, Ethernet", "jobs", "BERT.*x 4", "bert_40g", "rate: 2 machines"),
    Source(
        "BERT-Large, InfiniBand", "jobs", "InfiniBand", "bert_100g_infiniband", "rate: 2 machines"
    ),
    Source("ResNets on 25 Gbit/s", "jobs", "ResNet", "p3_16xlarge_25g", "rate: ResNet-50"),
    Source("torchft", "torchft", "", "", "constant time: 100 Mbit/s"),
    Source("Gloo, our links with delay", "delay"),
    Source("DiLoCo by a law of our TCP", "tcp"),
    Source("our imitated links", "imitated_network", "", "", "calibrated"),
    Source("our slow links", "network", "^(?!A?D-PSGD|AD-)", "", "calibrated"),
    Source("the same, D-PSGD, AD-PSGD", "network", "D-PSGD", "", "calibrated"),
)


@cache
def errors_of(source: Source) -> list[tuple[float, bool]]:
    """Return the error of each cell in percent, and whether its time was predicted.

    A fitted time counts as predicted if there is a fit that leaves it out.
    """
    if source.table.endswith("network"):
        return own_errors(source)
    listed = [
        cell
        for cell in cells()
        if cell.table == source.table and re.search(source.cells, cell.cell)
    ]
    return [(cell.error_left_out, bool(cell.left_out) or not cell.fitted) for cell in listed]


def own_errors(source: Source) -> list[tuple[float, bool]]:
    predicted = json.loads((OWN / source.table / "predicted.json").read_text(encoding="utf-8"))
    stored = json.loads((OWN / f"{source.table}.json").read_text(encoding="utf-8"))
    return [
        (100 * (predicted[table["title"]][row["what"]] / median(row["values"]) - 1), True)
        for table in stored["tables"]
        if table["title"] in predicted
        for row in table["results"]
        if row["what"] in ALGORITHMS and re.search(source.cells, row["what"])
    ]


def scores(source: Source) -> tuple[int, bool, float, float]:
    """Return the number of scored times, whether they were predicted, and mean and worst error."""
    every = errors_of(source)
    errors = [error for error, predicted in every if predicted] or [error for error, _ in every]
    return len(errors), any(predicted for _, predicted in every), *mean_and_worst(errors)


def picture() -> str:
    """Return an SVG with a row for each source and a dot for each time."""
    bottom = TOP + ROW * len(SOURCES)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 8}" '
        f'width="{WIDTH}" font-family="sans-serif" font-size="14" role="img" '
        'aria-label="Simulated time / real time by source">',
        f'<text x="6" y="20" font-size="17" font-weight="bold" fill="{TEXT}">Simulated time / real '
        "time: a dot for each time</text>",
        f'<text x="6" y="42" fill="{PREDICTED}">● predicted<tspan dx="14" fill="{MISSED}">● '
        f'predicted, {GOOD:.0f} % off or more on average</tspan><tspan dx="14" fill="{FITTED}">○ '
        "fitted</tspan></text>",
    ]
    for ratio in (0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5):
        x = place(ratio)
        lines += [
            f'<path d="M{x} {TOP - 8}V{bottom}" stroke="{TEXT}" stroke-opacity="'
            f'{0.9 if ratio == 1 else 0.3}"/>',
            f'<text x="{x}" y="{TOP - 14}" text-anchor="middle" fill="{TEXT}">{ratio:g}</text>',
        ]
    for number, source in enumerate(SOURCES):
        lines += row_of(source, TOP + ROW * number + ROW // 2)
    return "\n".join([*lines, "</svg>"]) + "\n"


def place(ratio: float) -> float:
    """Return the horizontal position of a ratio, on a logarithmic axis that ends at `EDGE`."""
    share = (1 + min(1.0, max(-1.0, log(ratio) / log(EDGE)))) / 2
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def row_of(source: Source, y: int) -> list[str]:
    mean = scores(source)[2]
    lines = [
        f'<text x="{LEFT - 8}" y="{y + 5}" text-anchor="end" fill="{TEXT}">'
        f"{escape(source.title)}</text>"
    ]
    for error, predicted in errors_of(source):
        colour = FITTED if not predicted else MISSED if mean >= GOOD else PREDICTED
        fill = f'fill="{colour}" fill-opacity="0.6"' if predicted else 'fill="none"'
        x = place(1 + error / 100)
        lines.append(f'<circle cx="{x}" cy="{y}" r="4.5" {fill} stroke="{colour}"/>')
    return lines


def lines_of_table() -> Sequence[tuple[str, ...]]:
    """Return a row for each source for the table on the page."""
    lines = []
    for source in SOURCES:
        count, predicted, mean, worst = scores(source)
        cluster = f"`{source.profile}`" if source.profile else ""
        kind = f"{count}" if predicted else f"{count} fitted"
        lines.append(
            (source.title, cluster, source.fitted, kind, f"{mean:.1f} %", f"{worst:.1f} %")
        )
    return lines
