"""Plots of the effects of a claim, with their intervals and expected ranges."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf

from claims.evidence import Judged, Verdict
from sgp_runner.report.plots.figure import Axis, Plot, Series, Style
from sgp_runner.report.plots.style import ticks_between
from sgp_runner.report.read.naming import group_by, wrap_label

EXPECTED = "#9cc3e0"
STYLES = {
    Verdict.REPRODUCED: Style("#0072b2", "circle"),
    Verdict.CONTRADICTED: Style("#d55e00", "cross"),
    Verdict.UNDECIDED: Style("#8a8a8a", "diamond"),
}
APART = 20.0  # a larger ratio of effects of the same sign needs a logarithmic axis
MARGIN = 0.08  # of the width of a plot


def forest(judged: Sequence[Judged]) -> list[Plot]:
    """Return a plot for each unit, with a row for each finding that decides."""
    deciding = [evidence for evidence in judged if not evidence.finding.earlier]
    return [
        effects(unit, members)
        for unit, members in group_by(deciding, lambda evidence: evidence.finding.unit).items()
    ]


def effects(unit: str, judged: Sequence[Judged]) -> Plot:
    """Plot effects over their expected ranges, which end at the edge if they have no bound."""
    intervals = [evidence.finding.effect for evidence in judged]
    ranges = [
        (evidence.finding.expected.least, evidence.finding.expected.most) for evidence in judged
    ]
    ends = [end for end in chain(*ranges) if abs(end) < inf]
    ends += [end for effect in intervals for end in (effect.low, effect.high)]
    wide = MARGIN * (max(ends) - min(ends)) or 1.0
    edges = min(ends) - wide, max(ends) + wide
    x = Axis(unit, span=edges)
    if min(ends) > 0 and max(ends) > APART * min(ends):
        edges = min(ends) / 1.3, max(ends) * 1.3
        x = Axis(unit, "log", ticks_between(*edges), span=edges)
    stars = [" *" if evidence.finding.primary else "" for evidence in judged]
    names = [
        wrap_label(evidence.finding.what) + star
        for evidence, star in zip(judged, stars, strict=True)
    ]
    rows = [f"{number}. {name}" for number, name in enumerate(names, start=1)]
    lows = [max(least, edges[0]) for least, _ in ranges]
    highs = [min(most, edges[1]) for _, most in ranges]
    series = [Series("expected", Style(EXPECTED, None, width=8.0), lows, rows, lows, highs)]
    for verdict, members in group_by(range(len(judged)), lambda row: judged[row].verdict).items():
        chosen = [intervals[row] for row in members]
        means, low, high = (
            [getattr(effect, key) for effect in chosen] for key in ("mean", "low", "high")
        )
        at = [rows[row] for row in members]
        series.append(Series(verdict.value, STYLES[verdict], means, at, low, high))
    note = "Pale: expected range. Blue circle: reproduced, red cross: contradicted, grey: undecided"
    return Plot("effects", note, "", x, Axis("", "category"), series, spread="x")
