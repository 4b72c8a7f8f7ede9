"""Figures of a study: the loss against time on each cluster, and the searches.

The arm under study has the brightest colour and the widest line, the baseline is dark, and the
others are pale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean

from sgp_runner.report.plots.figure import Axis, Plot, Series, Style, labelled
from sgp_runner.report.plots.quality import AXIS_END_MEDIANS, MAX_LOSS_RATIO, choose_axis
from sgp_runner.report.plots.style import ticks_between
from sgp_runner.report.read.naming import CLOCK, byte_unit, file_name, time_unit
from sgp_runner.studies.candidates import numbers_of
from sgp_runner.studies.conduct import ArmResult, Conducted
from sgp_runner.studies.measures import RunResult
from sgp_runner.studies.study_file import RATE
from sgp_runner.utils.units import counted

LOUD, DARK = "#e8112d", "#5b6b7c"
PALE = ("#7fb3d9", "#8fc79a", "#d9b36c", "#b7a2d6", "#9bb0b8", "#d3a5b5")
LOSS = "validation loss"
MAX_TICKS = 8  # that a phone has room for
BAND = "Line: mean over the seeds. Band: from the lowest seed to the highest."
CUT_NOTE = f"The axis ends at {AXIS_END_MEDIANS} times the median time of the arms."
BARS = "Marker: mean of the seeds at the end of the runs. Bar: from the lowest seed to the highest."
Point = tuple[float, float, float, float]  # time, mean loss, lowest and highest loss


def colours_of(done: Conducted) -> dict[str, str]:
    """Return the colour of each arm."""
    study = done.study
    others = [arm.name for arm in study.arms if arm.name not in (study.primary, study.baseline)]
    pale = {name: PALE[place % len(PALE)] for place, name in enumerate(others)}
    return {**pale, study.baseline: DARK, study.primary: LOUD}


def style_of(done: Conducted, name: str, shape: str | None = None) -> Style:
    width = 4.0 if name == done.study.primary else 2.5 if name == done.study.baseline else 2.0
    return Style(colours_of(done)[name], shape, "full", "solid", width)


def ordered(done: Conducted) -> list[ArmResult]:
    """Return the arms in drawing order, with the arm under study on top."""
    ranks = {done.study.primary: 2, done.study.baseline: 1}
    return sorted(done.arms, key=lambda arm: ranks.get(arm.arm.name, 0))


def loss_plots(done: Conducted, clusters: Sequence[str], clock: str) -> Iterator[Plot]:
    """Yield a plot of the loss against time for each cluster.

    clusters: names of the clusters
    clock: simulated | wall
    """
    for number, cluster in enumerate(clusters):
        curves = {arm.arm.name: mean_curve(arm.runs[number]) for arm in ordered(done)}
        curves = {name: points for name, points in curves.items() if points}
        if curves:
            yield loss_plot(done, curves, cluster, clock)


def mean_curve(runs: Sequence[RunResult]) -> list[Point]:
    """Return the mean over seeds at each epoch that all runs have, without diverged runs."""
    curves = [
        {
            round(float(point["epoch"]), 6): (float(point["time_s"]), float(point["loss"]))
            for point in run.curve
        }
        for run in runs
        if not run.job.diverged
    ]
    epochs = sorted(set.intersection(*map(set, curves))) if curves else []
    out = []
    for epoch in epochs:
        times, losses = zip(*(points[epoch] for points in curves), strict=True)
        out.append((fmean(times), fmean(losses), min(losses), max(losses)))
    return out


def loss_plot(
    done: Conducted, curves: Mapping[str, Sequence[Point]], cluster: str, clock: str
) -> Plot:
    ends = [points[-1][0] for points in curves.values()]
    scale, end = choose_axis(ends, ends, [points[0][0] for points in curves.values()])
    unit, size = time_unit(end or max(ends))
    single = all(len(points) == 1 for points in curves.values())
    series = [
        Series(
            name,
            style_of(done, name, "circle" if len(points) == 1 else None),
            [point[0] / size for point in points],
            [point[1] for point in points],
            [point[2] for point in points],
            [point[3] for point in points],
        )
        for name, points in (
            (name, [point for point in points if scale != "log" or point[0] > 0])
            for name, points in curves.items()
        )
    ]
    xs = [float(x) for line in series for x in line.x]
    what = CLOCK[clock]
    x = Axis(
        f"{what} in {unit}",
        scale,
        ticks_between(min(xs), max(xs)) if scale == "log" else (),
        scale == "linear",
        (0.0, end / size) if end else None,
    )
    where = f" on {cluster}" if cluster else ""
    cut = f" {CUT_NOTE}" if end else ""
    return labelled(
        Plot(
            file_name("loss", "against", "time", *([cluster] if cluster else [])),
            f"validation loss of the averaged model against {what}{where}",
            f"{BARS if single else BAND} Each has {counted(len(done.seeds), 'seed')}.{cut}",
            x,
            loss_axis(
                [value for line in series for value in (*(line.low or ()), *(line.high or ()))]
            ),
            series,
            "y" if single else "band",
        )
    )


def loss_axis(values: Sequence[float], title: str = LOSS) -> Axis:
    finite = [value for value in values if isfinite(value)]
    log = 0 < MAX_LOSS_RATIO * min(finite) < max(finite)
    return Axis(title, "log", ticks_between(min(finite), max(finite))) if log else Axis(title)


def tuning_plots(done: Conducted, clock: str = "simulated") -> Iterator[Plot]:
    """Yield a plot of the searches for each searched number, the learning rate first."""
    tried = (numbers_of(candidate) for arm in ordered(done) for candidate in arm.tuned.scores())
    for key in dict.fromkeys((RATE, *(key for numbers in tried for key in numbers))):
        series = [line for arm in ordered(done) for line in tuning_lines(done, arm, key)]
        values = sorted({float(x) for line in series for x in line.x})
        if len(values) > (key != RATE):  # of other settings, at least two values
            yield tuning_plot(done, key, values, series, clock)


def tuning_plot(
    done: Conducted, key: str, values: Sequence[float], series: Sequence[Series], clock: str
) -> Plot:
    by, what, unit, size = done.study.tune.by, LOSS, "", 1.0
    ys = [float(y) for line in series for y in line.y]
    if by is not None:
        what, (unit, size) = by.on(clock), (time_unit if by.cost == "time" else byte_unit)(max(ys))
        series = [replace(line, y=[float(y) / size for y in line.y]) for line in series]
    ticks = values if len(values) <= MAX_TICKS else ticks_between(values[0], values[-1])
    setting = "the learning rate" if key == RATE else key
    plot = labelled(
        Plot(
            file_name("tuning", *([] if key == RATE else [key])),
            f"{what} in the searches against {setting}",
            "A hollow marker shows the best result with this value for any other settings, "
            "a filled one the choice: mean over its seeds. "
            f"{'Diverged runs' if by is None else 'Runs that miss it'} are not drawn.",
            Axis("learning rate", "log", ticks) if key == RATE else Axis(key),
            loss_axis([y / size for y in ys], f"{what} in {unit}" if unit else what),
            [line for line in series if line.style.dash],
        )
    )
    return replace(plot, series=series)


def tuning_lines(done: Conducted, arm: ArmResult, key: str) -> Iterator[Series]:
    """Yield the best result at each value of a setting, and a marker for the choice."""
    drawn = [
        (numbers_of(candidate)[key], fmean(losses), candidate)
        for candidate, losses in arm.tuned.scores().items()
        if all(map(isfinite, losses)) and key in numbers_of(candidate)
    ]
    name, best = arm.arm.name, {x: y for x, y, _ in sorted(drawn, reverse=True)}
    if best:
        look = replace(style_of(done, name, "circle"), fill="hollow")
        yield Series(name, look, sorted(best), [best[x] for x in sorted(best)])
    chosen, y = numbers_of(arm.tuned.chosen), arm.tuned.score
    if key in chosen and isfinite(y):
        look, x = replace(style_of(done, name, "diamond"), dash=None), chosen[key]
        yield Series(f"{name}, chosen", look, [x], [y], texts=[f"chosen: {key}={x:g}"])
