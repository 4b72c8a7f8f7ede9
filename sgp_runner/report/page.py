"""The web page: one file with everything in it, which a browser shows without any network."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sgp_runner.report.figure import GLYPHS
from sgp_runner.report.interactive import figure
from sgp_runner.report.runs import PUBLISHED, REAL, REHEARSAL, TIMING, TRAINED

if TYPE_CHECKING:
    from sgp_runner.report.plots import Section
    from sgp_runner.report.tables import Table

ASSETS = Path(__file__).parent / "page"
MEANINGS = {
    REAL: "real processes that really waited for each other: measured time",
    TRAINED: "real gradients on the data set that results are published on; the time is that of the modelled machines: simulated time",
    REHEARSAL: "real gradients on small data; the time is that of the modelled machines: simulated time",
    TIMING: "messages and compute times of the modelled machines, nothing is trained: simulated time",
    PUBLISHED: "what a paper reports",
}
MARKS = "A full marker is a real run, a hollow one was trained or rehearsed in simulated time, one with a dot is timing only, "
MARKS += "a star a published figure. Its colour and shape are the method; the dash of a line is the number of nodes, where several are in "
MARKS += "one plot."


def render(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    tables: Sequence[Table],
    skipped: Sequence[str],
) -> str:
    """The page; links in it are relative to the folder it will lie in."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    figures = json.dumps(
        [figure(plot) for section in sections for plot in section.plots],
        allow_nan=False,
        default=float,
    )
    named = {cell.kind for table in tables for row in table.cells for cell in row if cell.kind}
    page = Environment(loader=FileSystemLoader(ASSETS), autoescape=True).get_template("page.html")
    return page.render(
        title=title,
        subtitle=subtitle,
        kinds=[(kind, meaning) for kind, meaning in MEANINGS.items() if kind in named],
        glyphs=GLYPHS,
        marks=MARKS,
        skipped=skipped,
        sections=sections,
        tables=tables,
        figures=Markup(figures.replace("<", "\\u003c")),
        css=Markup(asset("page.css")),
        js=Markup(asset("page.js")),
        plotly=Markup(asset("plotly-basic.min.js")),
    )


@functools.cache
def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
