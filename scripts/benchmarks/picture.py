"""A bar chart of times as SVG, drawn without a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, ROW, TOP = 480, 138, 60, 27, 88  # units of 1.4 pixels, fewer on a phone
OURS, THEIRS, TEXT = "#2f9e6e", "#9aa0a6", "#808080"  # visible on light and dark pages


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    ours: bool


def bars(title: str, unit: str, drawn: Sequence[Bar], bound: Bar) -> str:
    """Return an SVG of bars, shortest first, with the bound that none can beat as a line."""
    ordered = sorted(drawn, key=lambda bar: bar.value)
    scale = (WIDTH - LEFT - RIGHT) / ordered[-1].value
    bottom = TOP + ROW * len(ordered)
    line = LEFT + scale * bound.value
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 8}" '
        f'width="{1.4 * WIDTH:.0f}" font-family="sans-serif" font-size="15" role="img" '
        f'aria-label="{escape(title)}">',
        f'<text x="6" y="20" font-size="18" font-weight="bold" fill="{TEXT}">'
        f"{escape(title)}</text>",
        f'<text x="6" y="44" font-weight="bold" fill="{OURS}">■ sgp-run'
        f'<tspan dx="16" font-weight="normal" fill="{THEIRS}">■ other libraries</tspan></text>',
    ]
    for number, bar in enumerate(ordered):
        y, length = TOP + ROW * number, scale * bar.value
        colour, weight = (OURS, "bold") if bar.ours else (THEIRS, "normal")
        lines += [
            f'<text x="{LEFT - 7}" y="{y + 18}" text-anchor="end" font-weight="{weight}" '
            f'fill="{colour if bar.ours else TEXT}">{escape(bar.name)}</text>',
            f'<rect x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="{ROW - 5}" rx="3" '
            f'fill="{colour}"/>',
            f'<text x="{LEFT + length + 6:.1f}" y="{y + 18}" fill="{TEXT}">'
            f"{bar.value:.0f} {unit}</text>",
        ]
    lines += [
        f'<path d="M{line:.1f} {TOP - 8}V{bottom}" stroke="#d9480f" stroke-width="2" '
        'stroke-dasharray="5 4"/>',
        f'<text x="{line:.1f}" y="{TOP - 14}" text-anchor="middle" fill="#d9480f">'
        f"{escape(bound.name)}: {bound.value:.0f} {unit}</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
