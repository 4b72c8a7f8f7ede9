"""Plot of the consensus distance: how far the workers' models are from their mean, over time."""

from __future__ import annotations

from collections.abc import Iterator

from sgp_runner.report.plots.figure import Axis, Plot, Series, labelled
from sgp_runner.report.plots.style import StyleMap, select_lines, ticks_between
from sgp_runner.report.rank.ranking import Ranking
from sgp_runner.report.read.naming import CLOCK, file_name, kinds, names, on_cluster, time_unit

NOTE = "Mean over the seeds. A logarithmic axis cannot show equal models, at distance 0."


def consensus(ranking: Ranking) -> Iterator[Plot]:
    """Plot the consensus distance against time for the settings of a ranking."""
    apart = [setting for setting in ranking.settings if (setting.curve["consensus"] > 0).any()]
    members = select_lines(apart, lambda setting: setting.algorithm)
    if not members:
        return
    unit, size = time_unit(max(setting.curve["time_s"].max() for setting in members))
    look, series = StyleMap(members), []
    for name, setting in zip(names(members), members, strict=True):
        curve = setting.curve[setting.curve["consensus"] > 0]
        distances = [float(distance) for distance in curve["consensus"]]
        epochs = [f"epoch {epoch:g}" for epoch in curve["epoch"]]
        times = list(curve["time_s"] / size)
        series.append(Series(name, look.of(setting), times, distances, texts=epochs))
    values = [float(distance) for line in series for distance in line.y]
    clock = CLOCK[ranking.clock]
    yield labelled(
        Plot(
            file_name("consensus", ranking.clock, *filter(None, ranking.name_parts[:-1])),
            f"consensus distance against {clock} · {kinds(members)}{on_cluster(members)}",
            NOTE,
            Axis(f"{clock} in {unit}", from_zero=True),
            Axis("consensus distance", "log", ticks_between(min(values), max(values))),
            series,
        )
    )
