"""Reports as folders: ``index.html``, tables as CSV and Markdown, ``plots/`` as PNG and SVG.

The page is a single file that a browser shows offline.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sgp_runner.report.plots.figure import GLYPHS, Plot
from sgp_runner.report.plots.sections import Section, sections
from sgp_runner.report.rank.fastest import fastest_tables
from sgp_runner.report.rank.headline import comparison_title, headline
from sgp_runner.report.rank.ranked_table import ranked_tables
from sgp_runner.report.rank.ranking import rankings
from sgp_runner.report.rank.run_summary import RunSummary, run_summary
from sgp_runner.report.rank.tables import ReportTable, tables
from sgp_runner.report.rank.translations import translation_tables
from sgp_runner.report.read.published import Pair, pairs_of
from sgp_runner.report.read.run_groups import RunGroup, labels, settings_in
from sgp_runner.report.read.runs import PUBLISHED, REAL, REHEARSAL, TIMING, TRAINED, Runs, read_runs
from sgp_runner.report.render.interactive import figure
from sgp_runner.report.render.text_tables import save_tables
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import install, installed
from sgp_runner.utils.messages import logger
from sgp_runner.utils.reading import read_text
from sgp_runner.utils.units import counted

SAFE = "/#:=+,@!$&'*;~"  # characters of a path that need no escape in a link
MAX_CONFIGS = 100  # settings; the configurations of more are only in the folders of their runs
ASSETS = Path(__file__).parents[1] / "page"
MEANINGS = {
    REAL: "real processes, in measured time",
    TRAINED: "real gradients, in simulated time of the modelled machines",
    REHEARSAL: "a published setting on small data, with real gradients, in simulated time",
    TIMING: "no training; messages and gradients take simulated time on the modelled machines",
    PUBLISHED: "reported by a paper",
}
MARKS = (
    "A full marker is a real run, a hollow one was trained or rehearsed in simulated time, "
    "one with a dot is timing only, a star is a published figure. "
    "Its colour and shape show the algorithm, in all reports; shades and dashes show its settings "
    "and numbers of nodes, where a report has several."
)


@dataclass(frozen=True)
class Report:
    """A report on disk.

    page: path of the page
    settings, pairs: contents of the report
    skipped: a sentence for each folder that could not be read
    """

    page: Path
    settings: Sequence[RunGroup]
    pairs: Sequence[Pair]
    skipped: Sequence[str]


def write_report(folders: Sequence[Path], out: Path, target: float | None = None) -> Report:
    """Write a report on the runs in ``folders`` (`report_on`). Raises ConfigError without runs."""
    return report_on(read_runs(folders), out, target)


def report_on(runs: Runs, out: Path, target: float | None = None) -> Report:
    """Write a report on ``runs`` to ``out``, replacing an earlier report there.

    target: quality to which the times are compared; None: chosen automatically

    Raises ConfigError for an impossible target, or if ``out`` cannot be written.
    """

    def link(folder: str, file: str) -> str:
        path = os.path.relpath(Path(folder) / file, out)
        # A browser must not read a name such as javascript:... as a scheme.
        return quote(os.fsencode(path if path.startswith("..") else f"./{path}"), SAFE)

    settings = settings_in(runs)
    if (
        target is not None
        and target > 1
        and any(setting.metric == "accuracy" for setting in settings)
    ):
        raise ConfigError(
            "--target",
            f"an accuracy is between 0 and 1, not {target:g}: write 90 % as --target 0.9.",
        )
    pairs = pairs_of(settings)
    ranked = rankings(settings, target)
    page_sections = sections(settings, ranked, pairs)
    overview, first = [*fastest_tables(ranked)], ranked_tables(ranked)
    others = [*translation_tables(settings), *tables(settings, pairs, link)]
    box = run_summary(settings)
    configs = [
        (label, read_text(Path(setting.folder) / "config.yaml"))
        for label, setting in zip(labels(settings), settings, strict=True)
        if len(settings) <= MAX_CONFIGS
    ]
    unfinished = sum(len(setting.seeds) for setting in settings if not setting.finished)
    subtitle = f"{counted(len(runs.table), 'run')} of {counted(len(settings), 'setting')}"
    subtitle += f", of which {counted(unfinished, 'run')} unfinished." if unfinished else "."
    page = out / "index.html"
    try:
        (out / "plots").mkdir(parents=True, exist_ok=True)
        for pattern in ("plots/*.png", "plots/*.svg", "ranking*.*", "fastest*.*"):
            for path in out.glob(pattern):
                path.unlink()
        save_tables((*overview, *first, *others), out)
        save_pictures((plot for section in page_sections for plot in section.plots), out / "plots")
        page.write_text(
            render(
                comparison_title(settings),
                headline(ranked),
                subtitle,
                box,
                configs,
                first,
                page_sections,
                others,
                runs.skipped,
                overview,
            ),
            encoding="utf-8",
        )
    except OSError as error:
        raise ConfigError("--out", f"cannot write to {out}: {error.strerror}.") from error
    return Report(page, settings, pairs, runs.skipped)


def render(
    title: str,
    answer: str,
    subtitle: str,
    box: RunSummary,
    configs: Sequence[tuple[str, str]],
    ranked: Sequence[ReportTable],
    sections: Sequence[Section],
    tables: Sequence[ReportTable],
    skipped: Sequence[str],
    overview: Sequence[ReportTable] = (),
) -> str:
    """Return the page, with links relative to its folder.

    answer: a sentence about the best settings; empty if there are none
    configs: name and stored configuration of each setting, which the page shows
    overview: the tables at the top
    """
    named = {cell.kind for table in tables for row in table.cells for cell in row if cell.kind}
    return rendered(
        "page.html",
        [plot for section in sections for plot in section.plots],
        title=title,
        headline=answer,
        subtitle=subtitle,
        box=box,
        configs=configs,
        kinds=[(kind, meaning) for kind, meaning in MEANINGS.items() if kind in named],
        glyphs=GLYPHS,
        marks=MARKS,
        skipped=skipped,
        overview=overview,
        ranked=list(ranked),
        sections=sections,
        tables=list(tables),
    )


def save_pictures(plots: Iterable[Plot], folder: Path) -> None:
    """Write every plot as PNG and SVG; without matplotlib, print how to install it."""
    if not installed("matplotlib"):
        logger.info(f"Plots are only in the page; to get image files: {install('report')}.")
        return
    from sgp_runner.report.render.pictures import save_all

    save_all(plots, folder)


def rendered(template: str, plots: Sequence[Plot], **facts: object) -> str:
    """Return a page with these plots that works offline."""
    plotly = asset("plotly-basic.min.js")
    return filled(template, list(map(figure, plots)), asset("page.js"), plotly=plotly, **facts)


def filled(template: str, data: object, script: str, **facts: object) -> str:
    """Return a page with ``data`` as JSON, drawn by ``script``."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    figures = json.dumps(data, allow_nan=False, default=float)
    page = Environment(loader=FileSystemLoader(ASSETS), autoescape=True).get_template(template)
    facts |= {"css": asset("page.css"), "js": script, "pictures": installed("matplotlib")}
    code = {name: Markup(facts[name]) for name in ("css", "js", "plotly", "style") if name in facts}
    return page.render(facts | code, figures=Markup(figures.replace("<", "\\u003c")))


@functools.cache
def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
