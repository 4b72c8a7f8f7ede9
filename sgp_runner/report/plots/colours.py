"""One colour and one marker for each algorithm, the same in every report.

Families share a range of hues: all-reduces and servers blue, gossip green, local steps brown,
asynchronous algorithms purple. The colours were chosen for the largest differences within these
ranges as seen with normal, protan and deutan vision, and are visible on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def family_member(algorithm: str) -> str:
    """Return the algorithm whose look a title has: ``SlowMo(SGP)`` looks as SlowMo."""
    return "SlowMo" if algorithm.startswith("SlowMo(") else algorithm


def look_of(algorithm: str, others: Sequence[str] = ()) -> tuple[str, str]:
    """Return colour and marker; algorithms that are not in the table are told apart by ``others``.

    others: the algorithms outside the table, in the order of the report
    """
    name = family_member(algorithm)
    if name in LOOKS:
        return LOOKS[name]
    place = others.index(algorithm) if algorithm in others else 0
    return OTHERS[place % len(OTHERS)]


def shade(colour: str, number: int, count: int) -> str:
    """Return the colour of one of ``count`` variants, from dark to light."""
    if count == 1:
        return colour
    share = DARKEST + (LIGHTEST - DARKEST) * number / (count - 1)
    end = 255 if share > 0 else 0
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (end - part) * abs(share)):02x}" for part in parts)
