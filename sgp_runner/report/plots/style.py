"""Styles, axes and the choice of lines, for the plots of all sections.

An algorithm has the same colour and marker in every report. Families share a range of hues:
all-reduces and servers blue, gossip green, local steps brown, asynchronous algorithms purple.
Within a range, the colours differ as much as possible for normal, protan and deutan vision. They
are visible on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sgp_runner.report.plots.figure import DASHES, FILLS, Axis, Series, Style
from sgp_runner.report.read.naming import BASELINE, Item, group_by
from sgp_runner.report.read.published import Pair
from sgp_runner.report.read.run_groups import RunGroup
from sgp_runner.report.read.runs import PUBLISHED

MAX_LINES = 8  # lines or rows of a plot
MAX_AXIS_RATIO = 10  # of greatest to least: a wider range needs a logarithmic axis
MAX_BAR_RATIO = 30  # of longest to shortest bar, which begin at 0
LOOKS = {
    "AR-SGD": ("#3381ef", "circle"),
    "PS-SGD": ("#412ffc", "pentagon"),
    "Pipe-SGD": ("#46bbf7", "square"),
    "D-PSGD": ("#265f2e", "triangle-up"),
    "SGP": ("#6ac6a9", "diamond"),
    "OSGP": ("#81bf03", "triangle-down"),
    "Local SGD": ("#816e11", "hexagon"),
    "SlowMo": ("#c5ad6c", "cross"),
    "AD-PSGD": ("#a85176", "triangle-left"),
    "Gap-Aware": ("#9a0d89", "triangle-right"),
}
OTHERS = (("#808080", "circle"), ("#e8590c", "square"), ("#c92a2a", "diamond"))  # plug-ins
DARKEST, LIGHTEST = -0.4, 0.45  # shades of an algorithm's variants


class StyleMap:
    """Styles of the settings of one plot; an algorithm looks the same in every plot.

    Variants of an algorithm, such as learning rates or base algorithms of SlowMo, have different
    shades of its colour. Dashes distinguish variants and numbers of nodes.
    """

    def __init__(self, settings: Sequence[RunGroup]) -> None:
        # Their positions select colours and markers.
        self.others = [
            name
            for name in dict.fromkeys(str(setting.algorithm) for setting in settings)
            if family_member(name) not in LOOKS
        ]
        self.variants = {
            name: list(dict.fromkeys(setting.method for setting in members))
            for name, members in group_by(
                settings, lambda setting: family_member(str(setting.algorithm))
            ).items()
        }
        self.nodes = sorted({int(setting.nodes) for setting in settings})

    def of(self, setting: RunGroup, line: bool = True) -> Style:
        dash = self.variant(setting) * len(self.nodes) + self.nodes.index(int(setting.nodes))
        return self.style(setting, dash if line else None)

    def of_method(self, setting: RunGroup) -> Style:
        """Return the style of a line that joins the numbers of nodes of one method."""
        return self.style(setting, self.variant(setting))

    def variant(self, setting: RunGroup) -> int:
        return self.variants[family_member(setting.algorithm)].index(setting.method)

    def style(self, setting: RunGroup, dash: int | None) -> Style:
        name = family_member(setting.algorithm)
        variants = self.variants[name]
        colour, shape = LOOKS.get(name) or OTHERS[self.others.index(name) % len(OTHERS)]
        return Style(
            shade(colour, self.variant(setting), len(variants)),
            shape,
            FILLS[setting.kind],
            None if dash is None else DASHES[dash % len(DASHES)],
        )


def nodes_axis(settings: Sequence[RunGroup]) -> Axis:
    return Axis("nodes", "log", sorted({int(setting.nodes) for setting in settings}))


def axis_over(title: str, values: Sequence[float]) -> Axis:
    """Return an axis that starts at 0, or is logarithmic if a range exceeds `MAX_BAR_RATIO`."""
    low, high = min(values), max(values)
    if high > MAX_BAR_RATIO * low > 0:
        return Axis(title, "log", ticks_between(low, high))
    return Axis(title, from_zero=True)


def ticks_between(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis around the range from ``low`` to ``high``.

    These are 1, 2 and 5 times the powers of ten, or all multiples if ``high`` < 5 ``low``.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high >= 5 * low else range(1, 10)
    values = [digit * 10.0**power for power in powers for digit in digits]
    below = [value for value in values if value <= low][-1:]
    return [*below, *(value for value in values if low < value < high * 1.3)]


def select_lines(items: Sequence[Item], algorithm: Callable[[Item], str]) -> list[Item]:
    """Return up to `MAX_LINES` of ``items``, which are sorted from best to worst, in this order.

    Prefers the baseline, then the best item of each other algorithm, then the next best items.
    """
    firsts: dict[str, int] = {}
    for number, item in enumerate(items):
        firsts.setdefault(algorithm(item), number)
    ahead = sorted(firsts.values(), key=lambda number: algorithm(items[number]) != BASELINE)
    numbers = dict.fromkeys([*ahead, *range(len(items))])
    return [items[number] for number in sorted([*numbers][:MAX_LINES])]


def family_member(algorithm: str) -> str:
    """Return the algorithm that determines colour and marker: SlowMo for ``SlowMo(SGP)``."""
    return "SlowMo" if algorithm.startswith("SlowMo(") else algorithm


def shade(colour: str, number: int, count: int) -> str:
    """Return the colour of one of ``count`` variants, from dark to light."""
    if count == 1:
        return colour
    share = DARKEST + (LIGHTEST - DARKEST) * number / (count - 1)
    end = 255 if share > 0 else 0
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (end - part) * abs(share)):02x}" for part in parts)


def stars_of(
    pairs: Sequence[Pair],
    x: Sequence[float] | None = None,
    y: Sequence[float | str] | None = None,
) -> Series:
    """Return the published figures as stars; give the other coordinate as ``x`` or ``y``."""
    values = [pair.published.value for pair in pairs]
    style = Style(fill=FILLS[PUBLISHED])
    texts = [f"{pair.row}, {pair.published.origin}" for pair in pairs]
    return Series(
        PUBLISHED, style, values if x is None else x, values if y is None else y, texts=texts
    )
