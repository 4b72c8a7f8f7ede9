"""Parts shared by the plots of all sections: their settings, styles, units and names."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from sgp_runner.report.figure import COLOURS, Axis, Style, style
from sgp_runner.report.runs import TIMING
from sgp_runner.report.settings import Setting
from sgp_runner.utils.units import BYTE_UNITS, HOUR, MINUTE

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
CLOCK = {"simulated": "simulated time", "wall": "measured time"}


class Look:
    """The same style for the same method and number of nodes in all plots.

    With too many methods for the colours, methods are counted for each data set instead of for the
    whole report.
    """

    def __init__(self, settings: Sequence[Setting]) -> None:
        self.settings = settings
        self.few = len({each.method for each in settings}) <= len(COLOURS)
        self.nodes = sorted({int(each.nodes) for each in settings})

    def of(self, setting: Setting, line: bool = True) -> Style:
        return style(self.number(setting), self.nodes.index(int(setting.nodes)), setting.kind, line)

    def of_method(self, setting: Setting) -> Style:
        """Style of a line along the numbers of nodes."""
        return style(self.number(setting), 0, setting.kind)

    def number(self, setting: Setting) -> int:
        methods = dict.fromkeys(
            each.method for each in self.settings if self.few or each.data == setting.data
        )
        return list(methods).index(setting.method)


def facets(items: Iterable[Item], key: Callable[[Item], Key]) -> Mapping[Key, list[Item]]:
    """Group the items that belong in one plot or table."""
    out: dict[Key, list[Item]] = {}
    for each in items:
        out.setdefault(key(each), []).append(each)
    return out


def lines_over_nodes(settings: Sequence[Setting]) -> list[tuple[str, list[Setting]]]:
    """Return label and settings, ordered by their nodes, of each method on each network."""
    lines = facets(settings, lambda each: (each.method, each.network))
    networks = {each.network for each in settings}
    return [
        (
            method if len(networks) == 1 else f"{method} · {network}",
            sorted(line, key=lambda each: int(each.nodes)),
        )
        for (method, network), line in lines.items()
    ]


def kinds(settings: Sequence[Setting]) -> str:
    """Describe the kinds of results and their data in words."""
    out = []
    for kind in dict.fromkeys(each.kind for each in settings):
        where = " and ".join(
            dict.fromkeys(f"{each.model} on {each.data}" for each in settings if each.kind == kind)
        )
        out.append(
            f"timing only, simulated, of {settings[0].data}"
            if kind == TIMING
            else f"{kind}, {where}"
        )
    return "; ".join(out)


def nodes_axis(settings: Sequence[Setting]) -> Axis:
    return Axis("nodes", "log", sorted({int(each.nodes) for each in settings}))


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the largest unit with at least 3 of it in ``seconds``, and its length in seconds."""
    return next(
        (
            (unit, size)
            for unit, size in (("hours", HOUR), ("minutes", MINUTE))
            if seconds >= 3 * size
        ),
        ("seconds", 1.0),
    )


def three_digits(value: float) -> str:
    """Write a positive number with three digits and no exponent: ``0.0512``, ``7.30``, ``1204``."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value > 0 else f"{value:g}"


def byte_unit(count: float) -> tuple[str, float]:
    power = min(max(0, math.floor(math.log10(count) / 3)), len(BYTE_UNITS) - 1) if count > 0 else 0
    return BYTE_UNITS[power], 1000.0**power


def file_name(*words: str) -> str:
    return "-".join(re.sub(r"[^a-z0-9]+", "_", word.lower()).strip("_") for word in words)


def folded(label: str) -> str:
    """Fold a category's name into lines that leave room on a phone."""
    return "\n".join(
        line.replace(" _", "_").replace("_ ", "_")
        for line in textwrap.wrap(label.replace("_", "_ "), 20, break_long_words=False)
    )
