"""Leaderboard: a static site that ranks the arms of many archives on common tracks.

A track is a task, machines and a cost to reach a loss. An archive takes part in a track if its
study has this task without other common settings, these machines and this measure.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import fmean

import pandas as pd

from sgp_runner.report.rank.tables import Cell, CellLink, ReportTable, text
from sgp_runner.report.render.text_tables import save_tables
from sgp_runner.report.render.write import rendered
from sgp_runner.studies.conduct import ArmResult
from sgp_runner.studies.damage import damage_named
from sgp_runner.studies.measures import Measure, measure_of, reached_by
from sgp_runner.studies.statistics import mean_of
from sgp_runner.studies.study_archive import FILE, VerificationFailed
from sgp_runner.studies.study_file import cluster_in, names_folder
from sgp_runner.studies.study_page import write_study
from sgp_runner.studies.study_tasks import TASKS
from sgp_runner.studies.verification import OpenedStudy, opened
from sgp_runner.utils.errors import ConfigError, printable
from sgp_runner.utils.units import counted

CLUSTER = "sgp_ethernet bandwidth={}"
TASK, BANDWIDTHS = "grammar", ("1 Gbit/s", "100 Mbit/s")
HEAD = ["#", "arm", "mean", "seeds", "search runs", "settings", "study"]
TEXTS = ("arm", "settings", "study")
PAGE, ENTRIES = "index.html", "entries"


@dataclass(frozen=True)
class Track:
    """A ranking of the board.

    bandwidth: bandwidth of the links of ``sgp_ethernet``
    measure: the cost to reach the target
    task: task of the studies that can take part
    """

    bandwidth: str
    measure: Measure
    task: str = TASK

    @property
    def name(self) -> str:
        task = "" if self.task == TASK else f"{self.task}-"
        return f"{task}{self.measure.cost}-{self.bandwidth.replace(' ', '').replace('/s', '')}"

    @property
    def machines(self) -> str:
        """The machines, as named in a study."""
        return CLUSTER.format(self.bandwidth.replace(" ", ""))

    @property
    def title(self) -> str:
        kind = "Simulated time" if self.measure.cost == "time" else "Bytes sent by a node"
        where = "" if self.task == TASK else f" on {self.task}"
        return f"{kind} to {self.measure.goal} at {self.bandwidth}{where}"


TRACKS = tuple(
    Track(bandwidth, measure_of(f"{cost}_to_loss({nats})"), task)
    for task, nats, bandwidths in ((TASK, 1, BANDWIDTHS), ("books", 4.3, ("1 Gbit/s", "25 Gbit/s")))
    for cost in ("time", "bytes")
    for bandwidth in bandwidths
)


@dataclass(frozen=True)
class Entry:
    """An arm on a track.

    costs: cost for each seed; infinite if the run does not reach the target
    """

    name: str
    costs: tuple[float, ...]
    arm: ArmResult
    study: str

    @property
    def reached(self) -> int:
        return sum(map(isfinite, self.costs))


@dataclass(frozen=True)
class Board:
    """A written leaderboard.

    archives: number of archives on the page
    absent: a sentence for each of these archives that is missing from a track
    refused: a sentence for each archive that was left out
    """

    page: Path
    archives: int
    absent: Sequence[str]
    refused: Sequence[str]


def write_board(folder: Path, out: Path, plugins: Sequence[str] = ()) -> Board:
    """Write the site for the archives in ``folder``.

    Inconsistent or unreadable archives are left out.

    plugins: the user's copies of the files that the archives name

    Each archive is opened by `verification.opened`, which checks that its tables follow from its
    runs.

    Raises ConfigError if the folder is missing, and if ``out`` has files that are not part of a
    board.
    """
    if not folder.is_dir():
        raise ConfigError("board", f"there is no folder {folder}; give one with archives (*.zip).")
    paths = sorted(folder.glob("*.zip"))
    entries: dict[Track, list[Entry]] = {track: [] for track in TRACKS}
    lines, refused = [], []
    try:
        check_out(out)
        for path in paths:
            try:
                if not names_folder(path.stem):
                    raise ConfigError("board", "its name cannot name a folder; rename it.")
                with opened(path, plugins) as study:
                    lines.append(add_study(path, study, out, entries))
            except (ConfigError, VerificationFailed) as error:
                refused.append(printable(f"{path.name} is left out: {error}"))
        out.mkdir(parents=True, exist_ok=True)
        tables = [track_table(track, arms) for track, arms in entries.items()]
        save_tables(tables, out)
        page = out / PAGE
        page.write_text(
            rendered(
                "board.html",
                [],
                title="Least cost to a loss: generated text, and books",
                tables=tables,
                studies=lines,
                glyphs={},
            ),
            encoding="utf-8",
        )
    except OSError as error:
        raise ConfigError("board", f"cannot write to {out}: {error.strerror}.") from error
    absent = [f"{line['name']} {line['absent']}" for line in lines if line["absent"]]
    return Board(page, len(lines), absent, refused)


def check_out(out: Path) -> None:
    """Raise ConfigError if a folder has files that are not part of a board."""
    tables = {f"{track.name}.{kind}" for track in TRACKS for kind in ("csv", "md")}
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    foreign = there - tables - {PAGE, ENTRIES}
    first = {f"{track.name}.csv" for track in TRACKS if track.task == TASK}  # of every board
    if not first <= there:  # the page is written last, so this one is of something else
        foreign |= there & {PAGE}
    if ENTRIES in there:
        entries = (out / ENTRIES).iterdir()
        foreign |= {f"{ENTRIES}/{path.name}" for path in entries if not (path / FILE).is_file()}
    if foreign:
        raise ConfigError(
            "board",
            f"{out} has files that do not belong to this board, such as {min(foreign)}: name a new "
            "folder.",
        )


def add_study(
    path: Path, study: OpenedStudy, out: Path, entries: dict[Track, list[Entry]]
) -> dict[str, str]:
    """Copy a study's archive and page, add its arms to the tracks, and describe the study."""
    there = out / ENTRIES / path.stem
    with damage_named(study.archive):
        write_study(study.maker, study.findings, study.record)
    there.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, there / FILE)  # the first file, by which `check_out` knows an entry
    shutil.copytree(
        study.archive.folder,
        there,
        ignore=shutil.ignore_patterns("runs", "retimed", "archive.json"),
        dirs_exist_ok=True,
    )
    for track in TRACKS:
        entries[track].extend(entries_on(track, study, path.stem))
    task = study.study.content.get("task")
    tracks = [track for track in TRACKS if track.task == task]
    tracks = tracks or [track for track in TRACKS if track.task == TASK]
    missing = {track.title: why for track in tracks if (why := obstacles(track, study))}
    return {
        "absent": absence(missing, len(tracks)),
        "name": path.stem,
        "question": study.study.question,
        "answer": study.findings.answer,
        "when": study.record.set_down[:10],
    }


def absence(missing: Mapping[str, Sequence[str]], tracks: int) -> str:
    """Describe why a study is missing from tracks; empty if it takes part in all.

    missing: the reasons, by the title of each such track
    tracks: number of tracks of the study's task
    """
    reasons = dict.fromkeys(
        reason for track_reasons in missing.values() for reason in track_reasons
    )
    if not missing:
        return ""
    share = "takes no part" if len(missing) == tracks else f"lacks {', '.join(missing)}"
    return f"{share}: {'; '.join(reasons)}."


def obstacles(track: Track, study: OpenedStudy) -> list[str]:
    """Return the reasons why a study does not take part in a track."""
    content = study.study
    asked = {word.partition("=")[0]: word for word in TASKS[track.task].all_overrides}
    present = {word.partition("=")[0]: word for word in content.common}
    other = [key for key in {**asked, **present} if asked.get(key) != present.get(key)]
    machines = track.machines
    return [
        *([f"settings other than task: {track.task} ({', '.join(other)})"] if other else []),
        *([f"no cluster {machines}"] if cluster_in(machines) not in content.clusters else []),
        *([f"no measure {track.measure}"] if track.measure not in content.measures else []),
    ]


def entries_on(track: Track, study: OpenedStudy, name: str) -> Iterator[Entry]:
    """Yield the arms of a study that take part in a track."""
    if obstacles(track, study):
        return
    cluster = study.study.clusters.index(cluster_in(track.machines))
    for arm in study.findings.done.arms:
        reached = reached_by(arm.runs[cluster], track.measure)
        costs = tuple(inf if cost is None else cost for cost in reached.at)
        yield Entry(arm.arm.name, costs, arm, name)


def track_table(track: Track, entries: Sequence[Entry]) -> ReportTable:
    """Return the ranking of a track; arms with a run that misses the target come last."""
    ordered = sorted(
        entries,
        key=lambda entry: (len(entry.costs) - entry.reached, fmean(entry.costs), entry.name),
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
                "settings": " ".join((*entry.arm.arm.overrides, *entry.arm.settings)),
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
                Cell([CellLink(entry.study, f"{ENTRIES}/{entry.study}/{PAGE}")]),
            ]
        )
    note = f"{counted(len(entries), 'arm')}. Small: the 95 % interval of the mean over the seeds."
    return ReportTable(track.name, track.title, note, pd.DataFrame(raw), HEAD, cells, TEXTS)
