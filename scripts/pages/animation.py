"""Animations of the messages between nodes, from a simulated run.

Nodes are on a circle and servers inside it. A node is blue while it computes a gradient. A dot is a
message, and its area is proportional to the message's bytes. A grey ring is an all-reduce.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from pages.figures import (
    ALL_REDUCE,
    FACTOR,
    FONT,
    GRADIENT,
    MESSAGE,
    SECONDS,
    SLOW,
    Trace,
    svg,
    text,
)

LOOP = 10 * SECONDS  # duration of an animation in seconds
SHORTEST = 0.02  # simulated seconds in which a message is at least visible
WIDTH, HEIGHT = 420, 390
CENTRE, RADIUS, NODE, DOT = (210, 158), 118, 16, 9  # in pixels; of the circle, a node, a message
Point = tuple[float, float]


def draw(trace: Trace) -> str:
    """Return the animated SVG of the first steps of ``trace``."""
    largest = max((size for *_, size in trace.messages), default=1.0)
    lines = [
        f"<style>{FONT}.n{{fill:{GRADIENT}}}.m{{fill:{MESSAGE};stroke:{MESSAGE}}}"
        f".o{{fill:none;stroke:{ALL_REDUCE};stroke-width:2}}"
        f".r{{fill:none;stroke:{ALL_REDUCE};stroke-width:10}}</style>",
        *all_reduces(trace),
        *(part for rank in range(trace.ranks) for part in node(trace, rank)),
        *(
            message(place(trace, i), place(trace, j), begin, end, size / largest)
            for i, j, begin, end, size in sorted(trace.messages, key=lambda flight: flight[2:4])
        ),
        *clock(),
        *key(trace, largest),
    ]
    return svg(WIDTH, HEIGHT, f"{trace.title} on {trace.nodes} nodes, animated", lines)


def on_circle(part: float, radius: float) -> Point:
    """Return the point at a fraction ``part`` of a full turn, clockwise from the top."""
    angle = 2 * math.pi * part
    x, y = CENTRE
    return round(x + radius * math.sin(angle), 1), round(y - radius * math.cos(angle), 1)


def place(trace: Trace, rank: int, away: float = 0) -> Point:
    """Return the position of a rank, moved outwards by ``away``; servers are inside the circle."""
    if rank < trace.nodes:
        return on_circle(rank / trace.nodes, RADIUS + away)
    servers = trace.ranks - trace.nodes
    return on_circle((rank - trace.nodes) / servers, RADIUS / 2.6 if servers > 1 else 0)


def node(trace: Trace, rank: int) -> Iterator[str]:
    """Yield the elements of a node, which is blue while it computes, and its number."""
    (x, y), (label_x, label_y) = place(trace, rank), place(trace, rank, away=NODE + 11)
    circle = f'cx="{x}" cy="{y}" r="{NODE}"'
    busy = [(begin, end) for other, begin, end in trace.gradients if other == rank]
    if busy:
        yield f'<circle class="n" {circle} opacity="0">{visibility(busy)}</circle>'
    yield f'<circle class="o" {circle}/>'
    name = str(rank) if rank < trace.nodes else trace.name(rank).replace("server", "S")
    yield text(label_x, label_y + 4, name, "middle")


def message(source: Point, target: Point, begin: float, end: float, share: float) -> str:
    """Return a message that moves between two points; ``share``: size relative to the largest."""
    end = max(end, begin + SHORTEST)
    (x0, y0), (x1, y1) = source, target
    if end > SECONDS:  # in flight when the loop ends
        reached = (SECONDS - begin) / (end - begin)
        x1, y1, end = x0 + (x1 - x0) * reached, y0 + (y1 - y0) * reached, SECONDS
    path = f"M{x0:.0f} {y0:.0f}L{x1:.0f} {y1:.0f}"
    times = f"0;{begin / SECONDS:.3f};{end / SECONDS:.3f};1"
    return (
        f'<g class="m" opacity="0">{visibility([(begin, end)])}<path d="{path}" opacity=".4"/>'
        f'<circle r="{max(2.5, DOT * math.sqrt(share)):.1f}">'
        f'<animateMotion path="{path}" keyPoints="0;0;1;1" keyTimes="{times}" calcMode="linear" '
        f"{REPEATED}/></circle></g>"
    )


def all_reduces(trace: Trace) -> Iterator[str]:
    """Yield the ring that is visible during all-reduces."""
    if trace.all_reduces:
        circle = f'cx="{CENTRE[0]}" cy="{CENTRE[1]}" r="{RADIUS}"'
        busy = visibility(trace.all_reduces)
        yield f'<circle class="r" {circle} opacity="0">{busy}</circle>'


def visibility(intervals: Iterable[tuple[float, float]]) -> str:
    """Return the animation that makes an element visible during time intervals."""
    changes = [(0.0, 0)]
    for begin, end in merged(intervals):
        changes += [(begin / SECONDS, 1), (min(end / SECONDS, 1.0), 0)]
    values = ";".join(str(value) for _, value in changes)
    times = ";".join(f"{time:.3f}" for time, _ in changes)
    return (
        f'<animate attributeName="opacity" calcMode="discrete" values="{values}" '
        f'keyTimes="{times}" {REPEATED}/>'
    )


REPEATED = f'dur="{LOOP:.0f}s" repeatCount="indefinite"'


def merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals, sorted."""
    union: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((begin, end))
    return union


def clock() -> Iterator[str]:
    """Yield a progress bar for simulated time."""
    left, width, y = 60, WIDTH - 120, HEIGHT - 56
    yield text(left - 8, y + 6, "0 s", "end") + text(WIDTH - 52, y + 6, f"{SECONDS} s")
    yield f'<rect x="{left}" y="{y}" width="{width}" height="4" fill="{ALL_REDUCE}" opacity=".4"/>'
    yield (
        f'<rect x="{left}" y="{y}" width="0" height="4" fill="{ALL_REDUCE}">'
        f'<animate attributeName="width" from="0" to="{width}" {REPEATED}/></rect>'
    )


def key(trace: Trace, largest: float) -> Iterator[str]:
    """Yield the legend of colours and dots."""
    yield text(
        WIDTH / 2,
        HEIGHT - 24,
        f"blue: computes a gradient (node {SLOW} takes {FACTOR} times as long)",
        "middle",
    )
    parts = [f"dot: message, largest {largest / 1e6:.3g} MB"] if trace.messages else []
    parts += ["ring: all-reduce"] if trace.all_reduces else []
    yield text(WIDTH / 2, HEIGHT - 7, "; ".join(parts), "middle")
