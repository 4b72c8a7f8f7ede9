"""The sections of a report and their plots; a section without plots gives the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sgp_runner.report.plots.figure import FILLS, Axis, Label, Plot, Series, Style
from sgp_runner.report.plots.quality import against_bytes, against_epochs, against_time
from sgp_runner.report.plots.scaling import per_iteration, speed_up
from sgp_runner.report.plots.style import MAX_LINES
from sgp_runner.report.plots.time_to_target import to_target
from sgp_runner.report.rank.ranking import Ranking
from sgp_runner.report.read.comparison import COMPARABLE, UNITS, Pair
from sgp_runner.report.read.naming import file_name, group_by, three_digits, wrap_label
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.report.read.runs import PUBLISHED

OURS = "#3381ef"  # beside published figures, in the colour of the text
MARKS = {"simulated, fitted to it": "square", "simulated, predicted": "diamond"}


@dataclass(frozen=True)
class Section:
    """A section of a report.

    absent: why there are no plots
    aside: whether its plots only add to those of other sections, and are folded
    """

    title: str
    intro: str
    plots: Sequence[Plot]
    absent: str
    aside: bool = False


def sections(
    settings: Sequence[RunGroup], ranked: Sequence[Ranking], pairs: Sequence[Pair]
) -> list[Section]:
    """Return the sections of a report; the first is what is asked first."""
    evaluated = [each for one in ranked for each in one.settings if len(each.curve)]
    metrics = {each.metric for each in evaluated}
    quality = (
        {"bleu": "BLEU"}.get(metric := metrics.pop(), metric.capitalize())
        if len(metrics) == 1
        else "Quality"
    )
    whose = "Quality is the mean over the workers' own models, or that of the server's model."
    none = "No run was evaluated: timing-only runs train nothing."
    timed = [each for each in settings if each.finished and each.mean("ms_per_iteration") > 0]
    return [
        Section(
            f"Time to a target {'accuracy' if quality == 'Accuracy' else 'quality'}",
            "Time until the mean over the workers' models reaches the target, linear between "
            "evaluations.",
            [*to_target(ranked)],
            none if not evaluated else "No run reached the target.",
        ),
        Section(
            f"{quality} against time",
            f"{whose} Simulated and measured time are never in one plot.",
            [plot for each in ranked for plot in against_time(each)],
            none,
        ),
        Section(
            f"{quality} against epochs",
            f"{whose} An epoch is one pass over the training set by all nodes together.",
            [*against_epochs(evaluated)],
            none,
            aside=True,
        ),
        Section(
            f"{quality} against bytes sent",
            f"{whose} Bytes are those one node has sent, mean over the nodes.",
            [*against_bytes(evaluated)],
            none,
            aside=True,
        ),
        Section(
            "Time per iteration",
            "The time of the slowest node divided by the steps of one node.",
            [*per_iteration(timed, pairs)],
            "No run has finished.",
        ),
        Section(
            "Speed-up and efficiency",
            "Samples per second of all nodes, relative to the smallest number of nodes "
            "that the same method ran on here. Efficiency is the speed-up divided by the ideal "
            "one, which grows in proportion to the number of nodes.",
            [*speed_up(timed)],
            "No method ran on two numbers of nodes.",
        ),
        Section(
            "Published beside ours",
            "Our figures are simulated unless they are called real: predicted by the model of the "
            "machines, or used to fit it.",
            [*beside_published(pairs)],
            "No run here reproduces a published row with a comparable figure; "
            "the presets in configs/experiment do.",
        ),
    ]


def beside_published(pairs: Sequence[Pair]) -> Iterator[Plot]:
    """Plot each published table with a figure that ours can be compared with."""
    comparable = [pair for pair in pairs if pair.error is not None]
    for (metric, table), members in group_by(
        comparable, lambda pair: (pair.metric, table_of(pair.row))
    ).items():
        for part in range(0, len(members), MAX_LINES):
            yield published_plot(metric, table, members[part : part + MAX_LINES], part // MAX_LINES)


def table_of(row: str) -> str:
    """Return the first words of a row's name, which its table shares."""
    return "_".join(row.split("_")[: 2 if row.startswith("slowmo") else 1])


def published_plot(metric: str, table: str, pairs: Sequence[Pair], part: int) -> Plot:
    rows = [wrap_label(pair.row.removeprefix(f"{table}_")) for pair in pairs]
    series = [
        Series(
            PUBLISHED,
            Style(fill=FILLS[PUBLISHED]),
            [pair.published.value for pair in pairs],
            rows,
            texts=[pair.published.origin for pair in pairs],
        )
    ]
    keys = []
    for ours_is, members in group_by(
        zip(rows, pairs, strict=True), lambda each: each[1].ours_is
    ).items():
        shape = MARKS.get(ours_is, "circle")
        keys.append(f"{shape}: {ours_is}")
        series.append(
            Series(
                f"ours, {ours_is}",
                Style(OURS, shape, FILLS[members[0][1].kind]),
                [pair.ours for _, pair in members],
                [row for row, _ in members],
                [pair.low for _, pair in members],
                [pair.high for _, pair in members],
                [f"error {pair.error:+.1f} %" for _, pair in members],
            )
        )
    labels = [
        Label(f"{three_digits(pair.ours)}, {pair.error:+.1f} %", None, None, row)
        for row, pair in zip(rows, pairs, strict=True)
    ]
    what = COMPARABLE[metric]
    return Plot(
        file_name("published", metric, table, *([str(part + 1)] if part else [])),
        f"{what}, published beside ours · rows {table}_…",
        f"Star: published; {'; '.join(keys)}. Bars: from our lowest seed to our highest. At the "
        "right: ours, and by how much it is off.",
        Axis(f"{what} {UNITS[metric]}".strip(), from_zero=True),
        Axis("", "category"),
        series,
        "x",
        labels=labels,
    )
