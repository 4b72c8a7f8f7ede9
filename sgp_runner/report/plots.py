"""The sections of a report and their plots; a section without plots gives the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgp_runner.report.comparison import COMPARABLE, UNITS
from sgp_runner.report.figure import FILLS, Axis, Plot, Series, Style
from sgp_runner.report.parts import file_name, folded
from sgp_runner.report.quality import against_bytes, against_epochs, against_time, time_to_target
from sgp_runner.report.runs import PUBLISHED
from sgp_runner.report.scaling import per_iteration, speed_up
from sgp_runner.report.settings import Setting

if TYPE_CHECKING:
    from sgp_runner.report.comparison import Pair
    from sgp_runner.report.ranking import Ranking

OURS = "#3381ef"  # beside published figures, in the colour of the text
MARKS = {"simulated, fitted to it": "square", "simulated, predicted": "diamond"}


@dataclass(frozen=True)
class Section:
    """A section of a report.

    absent: why there are no plots
    """

    title: str
    intro: str
    plots: Sequence[Plot]
    absent: str


def sections(
    settings: Sequence[Setting], ranked: Sequence[Ranking], pairs: Sequence[Pair]
) -> list[Section]:
    """Return the sections of a report, which begins with what its rankings answer."""
    evaluated = [each for each in settings if len(each.curve)]
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
            [plot for each in ranked for plot in time_to_target(each)],
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
        ),
        Section(
            f"{quality} against bytes sent",
            f"{whose} Bytes are those one node has sent, mean over the nodes.",
            [*against_bytes(evaluated)],
            none,
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
    comparable = [pair for pair in pairs if pair.error is not None]
    for metric in dict.fromkeys(pair.metric for pair in comparable):
        members = [pair for pair in comparable if pair.metric == metric]
        rows = [folded(pair.row) for pair in members]
        series = [
            Series(
                PUBLISHED,
                Style(fill=FILLS[PUBLISHED]),
                [pair.published.value for pair in members],
                rows,
                texts=[pair.published.origin for pair in members],
            )
        ]
        for ours_is in dict.fromkeys(pair.ours_is for pair in members):
            ours = [
                (row, pair)
                for row, pair in zip(rows, members, strict=True)
                if pair.ours_is == ours_is
            ]
            series.append(
                Series(
                    f"ours, {ours_is}",
                    Style(OURS, MARKS.get(ours_is, "circle"), FILLS[ours[0][1].kind]),
                    [pair.ours for _, pair in ours],
                    [row for row, _ in ours],
                    [pair.low for _, pair in ours],
                    [pair.high for _, pair in ours],
                    [f"error {pair.error:+.1f} %" for _, pair in ours],
                )
            )
        what = COMPARABLE[metric]
        axis = Axis(f"{what} {UNITS[metric]}".strip(), from_zero=True)
        note = (
            "Star: published. Bars: from our lowest seed to our highest. "
            "The table has the error in percent."
        )
        name, title = file_name("published", metric), f"{what}, published beside ours"
        yield Plot(name, title, note, axis, Axis("", "category"), series, "x")
