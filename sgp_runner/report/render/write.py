"""Reports as folders: ``index.html``, tables as CSV and Markdown, ``plots/`` as PNG and SVG."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sgp_runner.report.plots.sections import sections
from sgp_runner.report.rank.ranked_table import ranked_tables
from sgp_runner.report.rank.ranking import rankings
from sgp_runner.report.rank.run_summary import what_was_run
from sgp_runner.report.rank.tables import tables
from sgp_runner.report.read.comparison import Pair, pairs_of
from sgp_runner.report.read.run_groups import RunGroup, labels, settings_in
from sgp_runner.report.read.runs import Runs, read_runs
from sgp_runner.report.render.page import render
from sgp_runner.report.render.pictures import save_all
from sgp_runner.report.render.text_tables import csv, markdown
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import read_text
from sgp_runner.utils.units import counted

SAFE = "/#:=+,@!$&'*;~"  # characters of a path that need no escape in a link


@dataclass(frozen=True)
class Report:
    """A report that was written.

    page: path of the page
    settings, pairs: what it shows
    skipped: a sentence for each folder that could not be read
    """

    page: Path
    settings: Sequence[RunGroup]
    pairs: Sequence[Pair]
    skipped: Sequence[str]


def write_report(
    folders: Sequence[Path],
    out: Path,
    target: float | None = None,
    title: str = "sgp-run report",
    kept: Callable[[Path], Path] = lambda folder: folder,
) -> Report:
    """Report on the runs in ``folders``, as ``report_on``. Raises ConfigError if there are none."""
    return report_on(read_runs(folders), out, target, title, kept)


def report_on(
    runs: Runs,
    out: Path,
    target: float | None = None,
    title: str = "sgp-run report",
    kept: Callable[[Path], Path] = lambda folder: folder,
) -> Report:
    """Report on ``runs`` and replace what an earlier report left in ``out``.

    target: quality whose time is compared; None chooses one
    kept: maps the folder of a run to where links shall lead instead

    Raises ConfigError for a target that cannot be, or if ``out`` cannot be written.
    """

    def link(folder: str, file: str) -> str:
        path = os.path.relpath(kept(Path(folder)) / file, out)
        # A name such as javascript:... must not be taken for a scheme.
        return quote(os.fsencode(path if path.startswith("..") else f"./{path}"), SAFE)

    settings = settings_in(runs)
    check_target(target, settings)
    pairs = pairs_of(settings)
    ranked = rankings(settings, target)
    shown = sections(settings, ranked, pairs)
    first, others = ranked_tables(ranked), tables(settings, pairs, link)
    box = what_was_run(settings)
    configs = [
        (label, read_text(Path(each.folder) / "config.yaml"))
        for label, each in zip(labels(settings), settings, strict=True)
    ]
    unfinished = sum(len(each.seeds) for each in settings if not each.finished)
    subtitle = f"{counted(len(runs.table), 'run')} of {counted(len(settings), 'setting')}"
    subtitle += f", of which {counted(unfinished, 'run')} unfinished." if unfinished else "."
    page = out / "index.html"
    try:
        (out / "plots").mkdir(parents=True, exist_ok=True)
        for path in (*out.glob("plots/*.png"), *out.glob("plots/*.svg"), *out.glob("ranking*.*")):
            path.unlink()
        for table in (*first, *others):
            (out / f"{table.name}.csv").write_text(csv(table), encoding="utf-8")
            (out / f"{table.name}.md").write_text(markdown(table), encoding="utf-8")
        save_all((plot for section in shown for plot in section.plots), out / "plots")
        page.write_text(
            render(title, subtitle, box, configs, first, shown, others, runs.skipped),
            encoding="utf-8",
        )
    except OSError as error:
        raise ConfigError("--out", f"cannot write to {out}: {error.strerror}.") from error
    return Report(page, settings, pairs, runs.skipped)


def check_target(target: float | None, settings: Sequence[RunGroup]) -> None:
    if target is not None and target > 1 and any(each.metric == "accuracy" for each in settings):
        raise ConfigError(
            "--target",
            f"an accuracy lies between 0 and 1, not at {target:g}: write 90 % as --target 0.9.",
        )
