"""The sections of a report and their plots; a section without plots gives the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sgp_runner.report.plots.bars import beside_published, to_target
from sgp_runner.report.plots.consensus import consensus
from sgp_runner.report.plots.figure import Plot
from sgp_runner.report.plots.quality import against_bytes, against_epochs, against_time
from sgp_runner.report.plots.scaling import per_iteration, speed_up
from sgp_runner.report.rank.ranking import Ranking
from sgp_runner.report.read.published import Pair
from sgp_runner.report.read.run_groups import METRIC_NAMES, RunGroup


@dataclass(frozen=True)
class Section:
    """A section of a report.

    absent: the reason, if there are no plots
    aside: whether the section is collapsed, because it only supplements other sections
    """

    title: str
    intro: str
    plots: Sequence[Plot]
    absent: str
    aside: bool = False


def sections(
    settings: Sequence[RunGroup], ranked: Sequence[Ranking], pairs: Sequence[Pair]
) -> list[Section]:
    """Return the sections of a report, the most important first."""
    evaluated = [setting for one in ranked for setting in one.settings if len(setting.curve)]
    metrics = {setting.metric for setting in evaluated}
    quality = (
        METRIC_NAMES.get(metric := metrics.pop(), metric.capitalize())
        if len(metrics) == 1
        else "Quality"
    )
    whose = "Quality is the mean over the workers' own models, or that of the server's model."
    reasons = [ranking.reason for ranking in ranked if ranking.by_quality]
    none = "No run was evaluated: timing-only runs train nothing."
    timed = [
        setting for setting in settings if setting.finished and setting.mean("ms_per_iteration") > 0
    ]
    return [
        Section(
            f"Time to a target {'accuracy' if quality == 'Accuracy' else 'quality'}",
            "Time until the mean over the workers' models reaches the target, linear between "
            "evaluations.",
            [*to_target(ranked)],
            [*reasons, "No run reached the target."][0] if evaluated else none,
        ),
        Section(
            f"{quality} against time",
            f"{whose} Simulated and measured time are never in one plot.",
            [plot for ranking in ranked for plot in against_time(ranking)],
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
            f"{whose} Bytes are those that a node has sent, averaged over the nodes.",
            [*against_bytes(evaluated)],
            none,
            aside=True,
        ),
        Section(
            "Consensus distance",
            "Root mean square distance of the workers' models from their mean, at each evaluation.",
            [plot for ranking in ranked for plot in consensus(ranking)],
            "The workers' models were equal, or not compared, at every evaluation.",
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
