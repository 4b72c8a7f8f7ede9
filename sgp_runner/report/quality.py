"""Plots of the quality reached: against time, epochs and bytes, and the time to a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sgp_runner.report.figure import Axis, Plot, Series
from sgp_runner.report.parts import (
    CLOCK,
    Look,
    byte_unit,
    count,
    facets,
    file_name,
    folded,
    kinds,
    time_unit,
)
from sgp_runner.report.settings import Setting, default_target, labels

AXIS = {"accuracy": "accuracy in %", "bleu": "BLEU", "loss": "loss"}
FACTOR = {"accuracy": 100.0, "bleu": 1.0, "loss": 1.0}
BAND = "Line: mean over the seeds. Band: from the lowest seed to the highest."


def against_time(settings: Sequence[Setting], look: Look) -> Iterator[Plot]:
    for name, members in facets(
        settings, lambda each: (each.model, each.data, each.metric, each.clock)
    ).items():
        unit, size = time_unit(max(each.curve["time_s"].max() for each in members))
        axis = Axis(f"{CLOCK[name[3]]} in {unit}", from_zero=True)
        yield quality_plot(
            "time", f"against {CLOCK[name[3]]}", members, "time_s", size, axis, look, name
        )


def against_epochs(settings: Sequence[Setting], look: Look) -> Iterator[Plot]:
    axis = Axis("epochs", from_zero=True)
    for name, members in facets(
        settings, lambda each: (each.model, each.data, each.metric)
    ).items():
        yield quality_plot("epochs", "against epochs", members, "epoch", 1.0, axis, look, name)


def against_bytes(settings: Sequence[Setting], look: Look) -> Iterator[Plot]:
    sent = [each for each in settings if each.curve["bytes"].max() > 0]
    for name, members in facets(sent, lambda each: (each.model, each.data, each.metric)).items():
        unit, size = byte_unit(max(each.curve["bytes"].max() for each in members))
        axis = Axis(f"{unit} sent per node", from_zero=True)
        yield quality_plot(
            "bytes", "against bytes sent per node", members, "bytes", size, axis, look, name
        )


def quality_plot(
    name: str,
    against: str,
    settings: Sequence[Setting],
    column: str,
    size: float,
    axis: Axis,
    look: Look,
    facet: tuple[str, ...],
) -> Plot:
    metric = settings[0].metric
    counts = {len(each.seeds) for each in settings}
    if counts == {1}:
        note = "Each line is a single seed."
    else:
        note = BAND + (f" Each has {counts.copy().pop()} seeds." if len(counts) == 1 else "")
    series = []
    for label, each in zip(labels(settings), settings, strict=True):
        curve, factor = each.curve, FACTOR[metric]
        several = len(each.seeds) > 1
        series.append(
            Series(
                label if len(counts) == 1 else f"{label} · {count(len(each.seeds), 'seed')}",
                look.of(each),
                list(curve[column] / size),
                list(factor * curve["quality"]),
                list(factor * curve["low"]) if several else None,
                list(factor * curve["high"]) if several else None,
                [f"epoch {epoch:g}" for epoch in curve["epoch"]],
            )
        )
    positive = metric == "loss" and min(min(each.curve["low"]) for each in settings) > 0
    return Plot(
        file_name(metric, "against", name, *facet[3:], *facet[:2]),
        f"{AXIS[metric].removesuffix(' in %')} {against} · {kinds(settings)}",
        note,
        axis,
        Axis(AXIS[metric], "log" if positive else "linear"),
        series,
    )


def time_to_target(settings: Sequence[Setting], target: float | None, look: Look) -> Iterator[Plot]:
    for (model, data, metric), everyone in facets(
        settings, lambda each: (each.model, each.data, each.metric)
    ).items():
        goal = default_target(everyone) if target is None else target
        shown = {
            "accuracy": f"{100 * goal:g} % accuracy",
            "bleu": f"{goal:g} BLEU",
            "loss": f"a loss of {goal:g}",
        }[metric]
        rule = "as asked"
        if target is None:
            several = count(len(everyone), "setting")
            rule = f"the best that at least half of {several} reach with every seed"
        for (clock,), members in facets(everyone, lambda each: (each.clock,)).items():
            reached = [
                (label, each, each.times_to(goal))
                for label, each in zip(labels(members), members, strict=True)
            ]
            there = [(label, each, times) for label, each, times in reached if times]
            if not there:
                continue
            unit, size = time_unit(max(max(times) for _, _, times in there))
            never = [label for label, _, times in reached if not times]
            note = (
                f"Target: {shown}, {rule}. "
                "Points: mean over the seeds that reach it; bars: from the fastest to the slowest."
            )
            note += f" Not reached by {', '.join(never)}." if never else ""
            series = [
                Series(
                    label,
                    look.of(each, line=False),
                    [sum(times) / len(times) / size],
                    [
                        folded(
                            label
                            if len(times) == len(each.seeds)
                            else f"{label} ({len(times)} of {count(len(each.seeds), 'seed')})"
                        )
                    ],
                    [min(times) / size],
                    [max(times) / size],
                    [f"{len(times)} of {count(len(each.seeds), 'seed')}"],
                )
                for label, each, times in there
            ]
            name = file_name("time to target", clock, metric, model, data)
            axis = Axis(f"{CLOCK[clock]} in {unit}", from_zero=True)
            title = f"{CLOCK[clock]} to {shown} · {kinds(members)}"
            yield Plot(name, title, note, axis, Axis("", "category"), series, "x", legend=False)
