"""Figures of the effects of a claim, with their intervals and expected ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from claims.evidence import Judged, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# On a phone, a figure is 390 px wide instead of 518 px (5.4 in), so letters shrink by a quarter.
WIDTH = 5.4  # inches
ROW = 0.3  # inches
FONT = 11.0
INK, DARK, PALE, BAND = "#222222", "#555555", "#8a8a8a", "#dcebf7"
MAX_NAMED = 4  # findings of a part with names in the figure; if there are more, see the table
LOOKS = {
    Verdict.REPRODUCED: ("#0072b2", "o"),
    Verdict.CONTRADICTED: ("#d55e00", "X"),
    Verdict.UNDECIDED: ("#8a8a8a", "D"),
}
APART = 20.0  # a larger ratio of effects of the same sign needs a logarithmic axis


def save(figure: Figure, path: Path) -> None:
    """Write the figure as SVG; equal figures have equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def grouped(judged: Iterable[Judged]) -> Mapping[str, Mapping[str, Sequence[Judged]]]:
    """Return the findings that decide, grouped by unit and then by part, in the given order."""
    out: dict[str, dict[str, list[Judged]]] = {}
    for each in judged:
        if not each.finding.earlier:
            unit = out.setdefault(each.finding.unit, {})
            unit.setdefault(each.finding.part, []).append(each)
    return out


def forest(judged: Sequence[Judged]) -> Figure:
    """Return a figure of the effects of a claim, with intervals and expected ranges.

    Each unit has a panel, each part has a row in it, and each finding has a line in the row.
    """
    units = grouped(judged)
    lines = [sum(map(height, rows.values())) for rows in units.values()]
    with rc_context({"font.size": FONT, "text.color": INK}):
        figure = Figure(
            figsize=(WIDTH, ROW * sum(lines) + 0.75 * len(lines)),
            layout="constrained",
            facecolor="white",
        )
        panels = figure.subplots(len(units), height_ratios=lines, squeeze=False)[:, 0]
        for axes, (unit, rows) in zip(panels, units.items(), strict=True):
            draw_effects(axes, unit, rows)
    return figure


def named(row: Sequence[Judged]) -> bool:
    """Return whether the findings of a part have names in the figure."""
    return len(row) <= MAX_NAMED


def height(row: Sequence[Judged]) -> float:
    """Return the height of a part, in lines of the figure.

    It has a line for its title and for each finding, and room for the names of findings.
    """
    return 1 + len(row) * (1.8 if named(row) else 1)


def draw_effects(axes: Axes, unit: str, rows: Mapping[str, Sequence[Judged]]) -> None:
    every = [each.finding for row in rows.values() for each in row]
    ends = [end for each in every for end in (each.effect.low, each.effect.high)]
    bounds = [end for each in every for end in (each.expected.least, each.expected.most)]
    known = [end for end in (*ends, *bounds) if abs(end) < inf]
    sizes = [*(each.effect.mean for each in every), *(end for end in bounds if abs(end) < inf)]
    logarithmic = min(known) > 0 and max(sizes) / min(sizes) > APART
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        low, high = min(known) / 1.3, max(known) * 1.3
    else:
        axes.locator_params(axis="x", nbins=5)
        room = 0.08 * (max(known) - min(known)) or 1.0
        low, high = min(known) - room, max(known) + room
    axes.set_xlim(low, high)
    place = 0.0
    for part, row in rows.items():
        star = " *" if any(each.finding.primary for each in row) else ""
        write(axes, place, f"{part}{star}", fontweight="bold")
        for each in row:
            if named(row):
                place += 0.8
                write(axes, place, each.finding.what, fontsize=0.8 * FONT, color=DARK)
            place += 1
            draw_effect(axes, place, each, low, high)
        place += 1
    axes.set_ylim(place - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_xlabel(unit, color=INK)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def write(axes: Axes, place: float, text: str, **look: Any) -> None:
    """Write a line of text at the left end of the axes, at the vertical position ``place``."""
    axes.text(0.0, place, text, transform=axes.get_yaxis_transform(), va="center", **look)


def draw_effect(axes: Axes, place: float, each: Judged, low: float, high: float) -> None:
    """Draw an effect and a band for its expected range, clipped to ``low`` and ``high``."""
    effect, expected = each.finding.effect, each.finding.expected
    begin, end = max(low, expected.least), min(high, expected.most)
    axes.barh(place, end - begin, 0.8, begin, color=BAND, zorder=0)
    for bound in (expected.least, expected.most):
        if low < bound < high:
            axes.plot([bound, bound], [place - 0.4, place + 0.4], color=PALE, linewidth=1)
    colour, marker = LOOKS[each.verdict]
    axes.plot([effect.low, effect.high], [place, place], color=colour, linewidth=2)
    axes.plot(effect.mean, place, marker, color=colour, markersize=7, markeredgecolor="white")
