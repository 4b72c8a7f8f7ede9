"""A board: a static site that ranks the arms of many archives on common tracks.

A track is a task, machines and a cost to a loss. An archive takes part in a track if its study has
this task, without other common settings, these machines and this measure.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import fmean

import pandas as pd

from sgp_runner.report.rank.tables import Cell, CellLink, ReportTable, text
from sgp_runner.report.render.text_tables import save_tables
from sgp_runner.report.render.write import rendered
from sgp_runner.studies.conduct import ArmResult
from sgp_runner.studies.measures import Measure, measure_of, reached_by
from sgp_runner.studies.statistics import mean_of
from sgp_runner.studies.study_archive import VerificationFailed
from sgp_runner.studies.study_file import cluster_in
from sgp_runner.studies.study_page import write_study
from sgp_runner.studies.study_tasks import TASKS
from sgp_runner.studies.verification import OpenedStudy, opened
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.units import counted

TASK, TARGET = "grammar", 1.0  # nats
CLUSTER = "sgp_ethernet bandwidth={}"
BANDWIDTHS = ("1 Gbit/s", "100 Mbit/s")
HEAD = ["#", "arm", "mean", "seeds", "search runs", "settings", "study"]
TEXTS = ("arm", "settings", "study")


@dataclass(frozen=True)
class Track:
    """A ranking of the board.

    bandwidth: of the links of ``sgp_ethernet``
    measure: the cost to reach the target
    """

    bandwidth: str
    measure: Measure

    @property
    def name(self) -> str:
        return f"{self.measure.cost}-{self.bandwidth.replace(' ', '').replace('/s', '')}"

    @property
    def title(self) -> str:
        kind = "Simulated time" if self.measure.cost == "time" else "Bytes sent by a node"
        return f"{kind} to {self.measure.goal} at {self.bandwidth}"


TRACKS = tuple(
    Track(bandwidth, measure_of(f"{cost}_to_loss({TARGET:g})"))
    for cost in ("time", "bytes")
    for bandwidth in BANDWIDTHS
)


@dataclass(frozen=True)
class Entry:
    """An arm on a track.

    costs: by seed; infinite where the run does not reach the target
    """

    name: str
    costs: tuple[float, ...]
    arm: ArmResult
    study: str

    @property
    def reached(self) -> int:
        return sum(map(isfinite, self.costs))


def write_board(folder: Path, out: Path, plugins: Sequence[str] = ()) -> tuple[Path, int]:
    """Write the site with the archives in ``folder``; return its page and the number of archives.

    plugins: the user's copies of the files that the archives name

    Each archive is opened as `verification.opened` does, so its tables follow from its runs.

    Raises ConfigError without the folder, and VerificationFailed for an archive that contradicts
    itself.
    """
    if not folder.is_dir():
        raise ConfigError("board", f"there is no folder {folder}; name one with archives (*.zip).")
    paths = sorted(folder.glob("*.zip"))
    entries: dict[Track, list[Entry]] = {track: [] for track in TRACKS}
    lines = []
    try:
        for path in paths:
            try:
                with opened(path, plugins) as study:
                    lines.append(add_study(path, study, out, entries))
            except VerificationFailed as error:
                raise VerificationFailed(f"{path.name}: {error}") from None
        out.mkdir(parents=True, exist_ok=True)
        tables = [track_table(track, found) for track, found in entries.items()]
        save_tables(tables, out)
        page = out / "index.html"
        page.write_text(
            rendered(
                "board.html",
                [],
                title=f"Least cost to a loss of {TARGET:g} on gpt and grammar",
                tables=tables,
                studies=lines,
                glyphs={},
            ),
            encoding="utf-8",
        )
    except OSError as error:
        raise ConfigError("board", f"cannot write to {out}: {error.strerror}.") from error
    return page, len(paths)


def add_study(
    path: Path, study: OpenedStudy, out: Path, entries: dict[Track, list[Entry]]
) -> dict[str, str]:
    """Copy archive and page of a study, add its arms to the tracks, and describe it."""
    there = out / "entries" / path.stem
    write_study(study.maker, study.found, study.record)
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(
        study.archive.folder,
        there,
        ignore=shutil.ignore_patterns("runs", "retimed", "archive.json"),
    )
    shutil.copyfile(path, there / "study.zip")
    for track in TRACKS:
        entries[track].extend(entries_on(track, study, path.stem))
    return {
        "name": path.stem,
        "question": study.study.question,
        "answer": study.found.answer,
        "when": study.record.set_down[:10],
    }


def entries_on(track: Track, study: OpenedStudy, name: str) -> Iterator[Entry]:
    """Yield the arms of a study that take part in a track."""
    content, clusters = study.study, [each.words for each in study.study.clusters]
    words = cluster_in(CLUSTER.format(track.bandwidth.replace(" ", ""))).words
    if (
        content.common != TASKS[TASK].all_words
        or words not in clusters
        or track.measure not in content.measures
    ):
        return
    for arm in study.found.done.arms:
        reached = reached_by(arm.runs[clusters.index(words)], track.measure)
        costs = tuple(inf if cost is None else cost for cost in reached.at)
        yield Entry(arm.arm.name, costs, arm, name)


def track_table(track: Track, entries: Sequence[Entry]) -> ReportTable:
    """Return the ranking of a track; arms of which a run misses the target come last."""
    ordered = sorted(
        entries, key=lambda each: (len(each.costs) - each.reached, fmean(each.costs), each.name)
    )
    raw, cells = [], []
    for place, entry in enumerate(ordered, start=1):
        interval = mean_of(entry.costs) if entry.reached == len(entry.costs) else None
        raw.append(
            {
                "rank": place,
                "arm": entry.name,
                "mean": interval.mean if interval else None,
                "low": interval.low if interval else None,
                "high": interval.high if interval else None,
                "reached": entry.reached,
                "seeds": len(entry.costs),
                "search_runs": entry.arm.tuned.runs,
                "settings": " ".join((*entry.arm.arm.words, *entry.arm.settings)),
                "study": entry.study,
            }
        )
        show = track.measure.text
        value = (
            text(show(interval.mean), f"{show(interval.low)} to {show(interval.high)}")
            if interval
            else text("-", f"{entry.reached} of {len(entry.costs)} reach it")
        )
        cells.append(
            [
                text(place if interval else "-"),
                text(entry.name),
                value,
                text(len(entry.costs)),
                text(entry.arm.tuned.runs),
                text(raw[-1]["settings"]),
                Cell([CellLink(entry.study, f"entries/{entry.study}/index.html")]),
            ]
        )
    note = f"{counted(len(entries), 'arm')}. Small: the 95 % interval of the mean over the seeds."
    return ReportTable(track.name, track.title, note, pd.DataFrame(raw), HEAD, cells, TEXTS)
