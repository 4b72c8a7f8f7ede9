"""The web page: one self-contained file that a browser shows without any network."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path

from sgp_runner.report.plots.figure import GLYPHS
from sgp_runner.report.plots.sections import Section
from sgp_runner.report.rank.run_summary import WhatWasRun
from sgp_runner.report.rank.tables import ReportTable
from sgp_runner.report.read.runs import PUBLISHED, REAL, REHEARSAL, TIMING, TRAINED
from sgp_runner.report.render.interactive import figure

ASSETS = Path(__file__).parents[1] / "page"
MEANINGS = {
    REAL: "real processes, in measured time",
    TRAINED: "real gradients, in simulated time of the modelled machines",
    REHEARSAL: "a published setting on small data, with real gradients, in simulated time",
    TIMING: "no training; messages and gradients only take simulated time of the modelled machines",
    PUBLISHED: "reported by a paper",
}
MARKS = (
    "A full marker is a real run, a hollow one was trained or rehearsed in simulated time, "
    "one with a dot is timing only, a star is a published figure. "
    "Its colour and shape show the algorithm, in all reports; shades and dashes show its settings "
    "and numbers of nodes, where a report has several."
)


def render(
    title: str,
    subtitle: str,
    box: WhatWasRun,
    configs: Sequence[tuple[str, str]],
    ranked: Sequence[ReportTable],
    sections: Sequence[Section],
    tables: Sequence[ReportTable],
    skipped: Sequence[str],
) -> str:
    """Return the page, whose links are relative to its folder.

    configs: name and configuration of each setting, so that the page says everything by itself
    """
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
        box=box,
        configs=configs,
        kinds=[(kind, meaning) for kind, meaning in MEANINGS.items() if kind in named],
        glyphs=GLYPHS,
        marks=MARKS,
        skipped=skipped,
        ranked=list(ranked),
        sections=sections,
        tables=list(tables),
        figures=Markup(figures.replace("<", "\\u003c")),
        css=Markup(asset("page.css")),
        js=Markup(asset("page.js")),
        plotly=Markup(asset("plotly-basic.min.js")),
    )


@functools.cache
def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
