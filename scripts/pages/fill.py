"""Generated parts of the documentation: tables, code and figures that come from the package.

A marker is an HTML comment on a separate line, such as ``<!-- settings: algo=sgp -->``. The lines
between it and ``<!-- end -->`` are generated and committed, so that they are visible in the
Markdown. ``make docs`` regenerates them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import explorer
from pages import algorithms, animation, api, features, figures, gpu_answers, settings
from validation import page, sources

DOCS = algorithms.ROOT / "docs"
PARTS: Mapping[str, Callable[[str], str]] = {
    "api": api.module,
    "code": algorithms.code,
    "features": features.features,
    "gpu": gpu_answers.table_of_answers,
    "published": algorithms.published_figures,
    "reference": settings.reference,
    "settings": settings.of_choice,
    "tests": algorithms.identities,
    "times": page.times,
}
# Comments "commands" are for tests/test_docs.py.
MARKER = re.compile(
    r"^(<!-- (?!commands: )(\w+): (.+) -->)$(?:(?:\n(?!<!-- ).*)*\n<!-- end -->$)?", re.MULTILINE
)


def filled(markdown: str) -> str:
    """Return a page with its generated parts; an unknown marker raises KeyError."""
    return MARKER.sub(lambda at: f"{at[1]}\n\n{PARTS[at[2]](at[3])}\n\n<!-- end -->", markdown)


def generated(names: str = "*") -> Iterator[tuple[Path, str]]:
    """Yield the files in ``docs/`` with generated parts, and their text.

    names: pattern of the pages' and figures' names without extension
    """
    for path in sorted(DOCS.rglob(f"{names}.md")):
        if MARKER.search(text := path.read_text(encoding="utf-8")):
            yield path, filled(text)
    if fnmatch("explorer", names):
        yield explorer.PAGE, explorer.explorer_page(explorer.stored_grids(), explorer.TITLE)
    if fnmatch("validation", names):
        yield DOCS / "validation.svg", sources.picture()
    for algo in figures.algorithms(names):
        yield DOCS / f"algorithms/{algo}.svg", figures.draw(figures.traced(algo, nodes=4))
        moving = animation.draw(figures.traced(algo, nodes=8))
        yield DOCS / f"algorithms/{algo}_animated.svg", moving
