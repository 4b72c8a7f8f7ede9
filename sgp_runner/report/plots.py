"""The plots of a report, section by section. A section without plots says why it has none."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sgp_runner.report.comparison import COMPARABLE, UNITS
from sgp_runner.report.figure import Axis, Plot, Series, Style, style
from sgp_runner.report.runs import PUBLISHED, REAL, TIMING
from sgp_runner.report.settings import Setting, default_target, labels
from sgp_runner.units import BYTE_UNITS, HOUR, MINUTE

if TYPE_CHECKING:
    from sgp_runner.report.comparison import Pair

CLOCK = {"simulated": "simulated time", "wall": "measured time"}
AXIS = {"accuracy": "accuracy in %", "bleu": "BLEU", "loss": "loss"}
FACTOR = {"accuracy": 100.0, "bleu": 1.0, "loss": 1.0}
BAND = "Line: mean over the seeds of a setting. Band: from its lowest seed to its highest; a single seed has none."


@dataclass(frozen=True)
class Section:
    """absent: why there are no plots."""

    title: str
    intro: str
    plots: Sequence[Plot]
    absent: str


class Look:
    """The same style for the same method and number of nodes in all plots of a report."""

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.methods = list(dict.fromkeys(each.method for each in settings))
        self.nodes = sorted({int(each.nodes) for each in settings})

    def of(self, setting: Setting, line: bool = True) -> Style:
        return style(self.methods.index(setting.method), self.nodes.index(int(setting.nodes)), setting.kind, line)

    def of_method(self, setting: Setting) -> Style:
        """For a line along the numbers of nodes."""
        return style(self.methods.index(setting.method), 0, setting.kind)


def sections(settings: Sequence[Setting], target: float | None, pairs: Sequence[Pair]) -> list[Section]:
    """target: None chooses one for each task."""
    look = Look(settings)
    evaluated = [each for each in settings if len(each.curve)]
    metrics = {each.metric for each in evaluated}
    quality = {"bleu": "BLEU"}.get(metric := metrics.pop(), metric.capitalize()) if len(metrics) == 1 else "Quality"
    whose = "Of each worker's own model, mean over the workers; where there is a server, of its model."
    none = "No run was evaluated: those that only time messages train nothing."
    timed = [each for each in settings if each.finished and each.mean("ms_per_iteration") > 0]
    return [
        Section(f"{quality} against time", f"{whose} Simulated and measured time are never in one plot.", against_time(evaluated, look), none),
        Section(f"{quality} against epochs", f"{whose} An epoch is one pass over the training set by all nodes together.", against_epochs(evaluated, look), none),
        Section(f"{quality} against bytes sent", f"{whose} Bytes are those one node has sent, mean over the nodes.", against_bytes(evaluated, look), none),
        Section(
            "Time per iteration",
            "Time of the slowest node divided by the steps of one node.",
            per_iteration(timed, look, pairs),
            "No run has finished.",
        ),
        Section(
            "Speed-up and efficiency",
            "Samples per second of all nodes, relative to the smallest number of nodes that the same method ran on here. "
            "Efficiency is the speed-up divided by the ideal one, which grows as the number of nodes does.",
            speed_up(timed, look),
            "No method ran on two numbers of nodes.",
        ),
        Section(
            f"Time to a target {'accuracy' if quality == 'Accuracy' else 'quality'}",
            "Until the first evaluation at which the mean of the workers' models is at the target or better.",
            time_to_target(evaluated, target, look),
            none,
        ),
        Section(
            "Published beside ours",
            "Ours are predictions of the modelled cluster, called simulated, unless they are called real.",
            beside_published(pairs),
            "No run here reproduces a published row with a figure that can be compared; presets in configs/experiment do.",
        ),
    ]


def against_time(settings: Sequence[Setting], look: Look) -> list[Plot]:
    plots = []
    for name, members in facets(settings, lambda each: (each.data, each.metric, each.clock)).items():
        unit, size = time_unit(max(each.curve["time_s"].max() for each in members))
        axis = Axis(f"{CLOCK[name[2]]} in {unit}", from_zero=True)
        plots.append(quality_plot("time", f"against {CLOCK[name[2]]}", members, "time_s", size, axis, look, name))
    return plots


def against_epochs(settings: Sequence[Setting], look: Look) -> list[Plot]:
    axis = Axis("epochs", from_zero=True)
    return [
        quality_plot("epochs", "against epochs", members, "epoch", 1.0, axis, look, name)
        for name, members in facets(settings, lambda each: (each.data, each.metric)).items()
    ]


def against_bytes(settings: Sequence[Setting], look: Look) -> list[Plot]:
    plots = []
    sent = [each for each in settings if each.curve["bytes"].max() > 0]
    for name, members in facets(sent, lambda each: (each.data, each.metric)).items():
        unit, size = byte_unit(max(each.curve["bytes"].max() for each in members))
        axis = Axis(f"{unit} sent per node", from_zero=True)
        plots.append(quality_plot("bytes", "against bytes sent per node", members, "bytes", size, axis, look, name))
    return plots


def quality_plot(
    name: str, against: str, settings: Sequence[Setting], column: str, size: float, axis: Axis, look: Look, facet: tuple[str, ...]
) -> Plot:
    metric = settings[0].metric
    series = []
    for label, each in zip(labels(settings), settings, strict=True):
        curve, factor = each.curve, FACTOR[metric]
        several = len(each.seeds) > 1
        series.append(
            Series(
                f"{label} · seed {each.seeds[0]}" if not several else f"{label} · {len(each.seeds)} seeds",
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
        file_name(metric, "against", name, *facet[2:], facet[0]),
        f"{AXIS[metric].removesuffix(' in %')} {against} · {kinds(settings)}",
        BAND,
        axis,
        Axis(AXIS[metric], "log" if positive else "linear"),
        series,
    )


def per_iteration(settings: Sequence[Setting], look: Look, pairs: Sequence[Pair]) -> list[Plot]:
    plots = []
    for name, members in facets(settings, lambda each: (each.model, each.data, each.clock)).items():
        series = []
        for label, line in lines_over_nodes(members):
            ranges = [each.range("ms_per_iteration") for each in line]
            series.append(
                Series(
                    label,
                    look.of_method(line[0]),
                    [int(each.nodes) for each in line],
                    [each.mean("ms_per_iteration") for each in line],
                    [low for low, _ in ranges],
                    [high for _, high in ranges],
                    [count(len(each.seeds), "seed") for each in line],
                )
            )
        rows = {each.row: each for each in members if each.row}
        theirs = [(pair, rows[pair.row]) for pair in pairs if pair.row in rows and pair.metric == "ms_per_iteration"]
        if theirs:
            series.append(
                Series(
                    PUBLISHED,
                    Style(),
                    [int(each.nodes) for _, each in theirs],
                    [pair.published.value for pair, _ in theirs],
                    texts=[f"{each.method}: {pair.row}, {pair.published.source}" for pair, each in theirs],
                )
            )
        plots.append(
            Plot(
                file_name("time per iteration", name[2], name[0], name[1]),
                f"time per iteration against nodes · {name[0]} · {kinds(members)}",
                f"{CLOCK[name[2]].capitalize()}. Points: mean over the seeds; bars: from the lowest seed to the highest.",
                nodes_axis(members),
                Axis(f"{CLOCK[name[2]]} per iteration in ms", from_zero=True),
                series,
                "y",
            )
        )
    return plots


def speed_up(settings: Sequence[Setting], look: Look) -> list[Plot]:
    plots = []
    for name, members in facets(settings, lambda each: (each.model, each.data, each.clock)).items():
        lines = [(label, line) for label, line in lines_over_nodes(members) if len({each.nodes for each in line}) > 1]
        if not lines:
            continue
        speeds, efficiencies = [], []
        for label, line in lines:
            x = [int(each.nodes) for each in line]
            rates = [each.nodes * each.batch_size / each.mean("ms_per_iteration") for each in line]
            speed = [rate / rates[0] for rate in rates]
            texts = [f"relative to {count(x[0], 'node')}"] * len(x)
            label = f"{label} · from {x[0]}"
            speeds.append(Series(label, look.of_method(line[0]), x, speed, texts=texts))
            ratio = [100 * value * x[0] / n for value, n in zip(speed, x, strict=True)]
            efficiencies.append(Series(label, look.of_method(line[0]), x, ratio, texts=texts))
        shown = [each for _, line in lines for each in line]
        nodes = sorted({int(each.nodes) for each in shown})
        for first in sorted({int(line[0].nodes) for _, line in lines}):
            ends = [first, nodes[-1]]
            speeds.append(Series(f"ideal · from {first}", Style(None, None, dash="dot"), ends, [n / first for n in ends]))
        efficiencies.append(Series("ideal", Style(None, None, dash="dot"), [nodes[0], nodes[-1]], [100.0, 100.0]))
        where = f"{name[0]} · {kinds(shown)}"
        note = f"From {CLOCK[name[2]]}, mean over the seeds. Each line begins at the method's smallest number of nodes."
        scale = Axis("speed-up", "log", powers_of_two(max(float(y) for each in speeds for y in each.y)))
        tail = (name[2], name[0], name[1])
        plots.append(Plot(file_name("speed-up", *tail), f"speed-up against nodes · {where}", note, nodes_axis(shown), scale, speeds))
        ratio_axis = Axis("efficiency in %", from_zero=True)
        plots.append(Plot(file_name("efficiency", *tail), f"efficiency against nodes · {where}", note, nodes_axis(shown), ratio_axis, efficiencies))
    return plots


def time_to_target(settings: Sequence[Setting], target: float | None, look: Look) -> list[Plot]:
    plots = []
    for (data, metric), everyone in facets(settings, lambda each: (each.data, each.metric)).items():
        goal = default_target(everyone) if target is None else target
        shown = f"{FACTOR[metric] * goal:g}" + {"accuracy": " %", "bleu": " BLEU", "loss": ""}[metric]
        rule = "as asked" if target is not None else f"which half of the {len(everyone)} settings or more reach with every seed"
        for (clock,), members in facets(everyone, lambda each: (each.clock,)).items():
            reached = [(label, each, each.times_to(goal)) for label, each in zip(labels(members), members, strict=True)]
            there = [(label, each, times) for label, each, times in reached if times]
            unit, size = time_unit(max((max(times) for _, _, times in there), default=1.0))
            missing = [f"{label} ({len(times)} of {count(len(each.seeds), 'seed')})" for label, each, times in reached if len(times) < len(each.seeds)]
            note = f"Target: {metric if metric != 'bleu' else 'BLEU'} {shown}, {rule}. Points: mean over the seeds; bars: from the fastest to the slowest. "
            note += f"Not reached by every seed: {'; '.join(missing)}." if missing else "Every seed reached it."
            series = [
                Series(
                    each.kind if len(times) == len(each.seeds) else f"{each.kind}, not all seeds",
                    look.of(each, line=False),
                    [sum(times) / len(times) / size],
                    [folded(label)],
                    [min(times) / size],
                    [max(times) / size],
                    [f"{len(times)} of {count(len(each.seeds), 'seed')}"],
                )
                for label, each, times in there
            ]
            if series:
                title = f"{CLOCK[clock]} to {shown.strip()} {metric if metric == 'accuracy' else 'loss' if metric == 'loss' else ''}".strip()
                axis = Axis(f"{CLOCK[clock]} in {unit}", from_zero=True)
                name = file_name("time to target", clock, data)
                plots.append(Plot(name, f"{title} · {kinds(members)}", note, axis, Axis("", "category"), series, "x"))
    return plots


def beside_published(pairs: Sequence[Pair]) -> list[Plot]:
    plots = []
    comparable = [pair for pair in pairs if pair.error is not None]
    for metric in dict.fromkeys(pair.metric for pair in comparable):
        members = [pair for pair in comparable if pair.metric == metric]
        rows = [folded(pair.row) for pair in members]
        series = [
            Series(
                PUBLISHED,
                Style(),
                [pair.published.value for pair in members],
                rows,
                texts=[pair.published.source + (", derived" if pair.published.derived else "") for pair in members],
            )
        ]
        for kind in dict.fromkeys(pair.kind for pair in members):
            ours = [(row, pair) for row, pair in zip(rows, members, strict=True) if pair.kind == kind]
            series.append(
                Series(
                    "ours, real" if kind == REAL else f"ours, simulated ({kind})",
                    style(0, 0, kind, line=False),
                    [pair.ours for _, pair in ours],
                    [row for row, _ in ours],
                    [pair.low for _, pair in ours],
                    [pair.high for _, pair in ours],
                    [f"error {pair.error:+.1f} %" for _, pair in ours],
                )
            )
        what, unit = COMPARABLE[metric], UNITS[metric]
        note = "Star: published. Bars: from our lowest seed to our highest. The error in percent is in the table."
        title = f"{what}, published beside ours"
        plots.append(Plot(file_name("published", metric), title, note, Axis(f"{what} {unit}".strip(), from_zero=True), Axis("", "category"), series, "x"))
    return plots


def facets(settings: Iterable[Setting], key: Callable[[Setting], tuple[str, ...]]) -> Mapping[tuple[str, ...], list[Setting]]:
    """The settings that belong in one plot."""
    out: dict[tuple[str, ...], list[Setting]] = {}
    for each in settings:
        out.setdefault(key(each), []).append(each)
    return out


def lines_over_nodes(settings: Sequence[Setting]) -> list[tuple[str, list[Setting]]]:
    """Label and settings, in order of their nodes, of each method on each network."""
    lines = facets(settings, lambda each: (each.method, each.network))
    networks = {each.network for each in settings}
    return [
        (method if len(networks) == 1 else f"{method} · {network}", sorted(line, key=lambda each: int(each.nodes)))
        for (method, network), line in lines.items()
    ]


def kinds(settings: Sequence[Setting]) -> str:
    """In words, what kinds of results these are and on which data."""
    out = []
    for kind in dict.fromkeys(each.kind for each in settings):
        where = " and ".join(dict.fromkeys(str(each.data) for each in settings if each.kind == kind))
        out.append("timing only, simulated" if kind == TIMING else f"{kind} {'runs ' if kind == REAL else ''}on {where}")
    return ", ".join(out)


def nodes_axis(settings: Sequence[Setting]) -> Axis:
    return Axis("nodes", "log", sorted({int(each.nodes) for each in settings}))


def powers_of_two(top: float) -> list[float]:
    return [2.0**power for power in range(max(1, math.ceil(math.log2(top))) + 1)]


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which the longest of some times is at least 3, and its seconds."""
    return next(((unit, size) for unit, size in (("hours", HOUR), ("minutes", MINUTE)) if seconds >= 3 * size), ("seconds", 1.0))


def byte_unit(count: float) -> tuple[str, float]:
    power = min(max(0, math.floor(math.log10(count) / 3)), len(BYTE_UNITS) - 1) if count > 0 else 0
    return BYTE_UNITS[power], 1000.0**power


def file_name(*words: str) -> str:
    return "-".join(re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_") for word in words)


def folded(label: str) -> str:
    """A category's name in lines that leave room on a phone."""
    return "\n".join(line.replace(" _", "_").replace("_ ", "_") for line in textwrap.wrap(label.replace("_", "_ "), 20, break_long_words=False))


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
