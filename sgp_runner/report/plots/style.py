"""Share styles, axes and the choice of lines between the plots of all sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sgp_runner.report.plots.colours import LOOKS, family_member, look_of, shade
from sgp_runner.report.plots.figure import DASHES, FILLS, Axis, Style
from sgp_runner.report.read.naming import BASELINE, Item, group_by
from sgp_runner.report.read.run_groups import RunGroup

MAX_LINES = 8  # lines or rows of a plot
MAX_AXIS_RATIO = 10  # of greatest to least: a wider range needs a logarithmic axis


class StyleMap:
    """Styles of the settings of one plot; an algorithm has the same colour and marker in all.

    Variants of an algorithm, such as other learning rates or what SlowMo is around, are shades of
    its colour; dashes tell apart variants and numbers of nodes.
    """

    def __init__(self, settings: Sequence[RunGroup]) -> None:
        self.others = [
            name
            for name in dict.fromkeys(str(each.algorithm) for each in settings)
            if family_member(name) not in LOOKS
        ]
        self.variants = {
            name: list(dict.fromkeys(each.method for each in members))
            for name, members in group_by(
                settings, lambda each: family_member(str(each.algorithm))
            ).items()
        }
        self.nodes = sorted({int(each.nodes) for each in settings})

    def of(self, setting: RunGroup, line: bool = True) -> Style:
        dash = self.variant(setting) * len(self.nodes) + self.nodes.index(int(setting.nodes))
        return self.style(setting, dash if line else None)

    def of_method(self, setting: RunGroup) -> Style:
        """Style of a line along the numbers of nodes."""
        return self.style(setting, self.variant(setting))

    def variant(self, setting: RunGroup) -> int:
        return self.variants[family_member(setting.algorithm)].index(setting.method)

    def style(self, setting: RunGroup, dash: int | None) -> Style:
        colour, shape = look_of(setting.algorithm, self.others)
        variants = self.variants[family_member(setting.algorithm)]
        return Style(
            shade(colour, self.variant(setting), len(variants)),
            shape,
            FILLS[setting.kind],
            None if dash is None else DASHES[dash % len(DASHES)],
        )


def nodes_axis(settings: Sequence[RunGroup]) -> Axis:
    return Axis("nodes", "log", sorted({int(each.nodes) for each in settings}))


def axis_over(title: str, values: Sequence[float]) -> Axis:
    """Return an axis from zero, or a logarithmic one over a range of `MAX_AXIS_RATIO` or more."""
    low, high = min(values), max(values)
    if high > MAX_AXIS_RATIO * low > 0:
        return Axis(title, "log", ticks_between(low, high))
    return Axis(title, from_zero=True)


def ticks_between(low: float, high: float) -> list[float]:
    """Return the values 1, 2 and 5 times a power of ten around the range, for logarithmic axes."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    below = [value for value in values if value <= low][-1:]
    return [*below, *(value for value in values if low < value < high * 1.3)]


def select_lines(items: Sequence[Item], algorithm: Callable[[Item], str]) -> list[Item]:
    """Return at most `MAX_LINES` items that show the most, in their order, which is the best first.

    That is the first of each algorithm, the baseline before all others, then the next best.
    """
    firsts: dict[str, int] = {}
    for number, each in enumerate(items):
        firsts.setdefault(algorithm(each), number)
    ahead = sorted(firsts.values(), key=lambda number: algorithm(items[number]) != BASELINE)
    numbers = dict.fromkeys([*ahead, *range(len(items))])
    return [items[number] for number in sorted([*numbers][:MAX_LINES])]
