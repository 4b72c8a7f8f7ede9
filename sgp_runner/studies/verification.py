"""Verification of an archive: recomputing its tables and repeating some of its runs.

Every number in the tables must follow from the metrics; the first one that does not is reported. A
repeated run must have byte-identical records. If the versions or the processor differ from those of
the archive, and in real runs, its results must agree within `TOLERANCE`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import isclose
from pathlib import Path
from typing import Any

from sgp_runner.config.experiment import load_experiment, other_version
from sgp_runner.config.plugins.loading import KEY
from sgp_runner.config.plugins.named_files import NamedFiles
from sgp_runner.distributed.private_folder import private_folder
from sgp_runner.jobs.job_pool import PoolJob, RunJob, run_all
from sgp_runner.recording.recorder import read_metrics, read_summary
from sgp_runner.report.render.text_tables import csv
from sgp_runner.studies.arms import RetimedJob, RunMaker, check_arms
from sgp_runner.studies.conduct import conduct
from sgp_runner.studies.damage import damage_named, rows_in, rows_of
from sgp_runner.studies.study_archive import (
    TABLES,
    StudyArchive,
    VerificationFailed,
    extract,
)
from sgp_runner.studies.study_file import StudyFile, study_of
from sgp_runner.studies.study_page import Findings, findings_of
from sgp_runner.studies.study_record import FILE as RECORD
from sgp_runner.studies.study_record import StudyRecord, as_set_down
from sgp_runner.utils.provenance import environment
from sgp_runner.utils.reading import read_json, read_yaml

TOLERANCE = 0.05  # relative
ROUNDING = 1e-9  # relative; of numbers in the tables
OWN = ("real_s", "run_dir", "retimed_from")  # of a summary; differ by place
SAME_MACHINE = ("sgp_run", "git", "python", "packages", "processor", "variables")


@dataclass(frozen=True)
class OpenedStudy:
    """A study from an archive, with recomputed tables.

    maker: factory of all jobs of the study
    files: the user's copies of the files that the archive names
    """

    maker: RunMaker
    findings: Findings
    record: StudyRecord
    archive: StudyArchive
    files: NamedFiles

    @property
    def study(self) -> StudyFile:
        return self.maker.study


@contextmanager
def opened(path: Path, plugins: Sequence[str] = ()) -> Iterator[OpenedStudy]:
    """Open an archive in a temporary folder, and check that its tables follow from its runs.

    plugins: the user's copies of the files that the archive names

    Raises ConfigError for a file that cannot be read as an archive, and VerificationFailed for
    inconsistent contents.
    """
    with private_folder() as scratch:
        archive = extract(path, scratch)
        with damage_named(archive):
            study, record = archived_study(archive, scratch)
            files = NamedFiles(plugins, recorded_hashes(archive) if plugins else {})
            maker = RunMaker(study, refuse_runs, files.local)
            findings = findings_of(maker, conduct(maker, check_arms(maker)), record)
            check_runs(maker, archive)
            for name, table in zip(TABLES, (findings.table, findings.budget), strict=True):
                compare_rows(name, rows_in(archive.folder / name), rows_of(csv(table)))
        if findings.answer != archive.answer:
            raise VerificationFailed(
                f"the answer does not follow from the runs, which give: {findings.answer}"
            )
        yield OpenedStudy(maker, findings, record, archive, files)


def archived_study(archive: StudyArchive, results: Path) -> tuple[StudyFile, StudyRecord]:
    """Return the study as recorded. Raises VerificationFailed for a changed file."""
    record = StudyRecord(read_json(archive.folder / RECORD)["versions"])
    for version in record.versions:
        if missing := [key for key in ("content", "digest", "started") if key not in version]:
            raise VerificationFailed(f"{RECORD} has a version without its {missing[0]}.")
        study = study_of(version["content"], archive.name)
        if study.digest != version["digest"]:
            raise VerificationFailed(
                f"{RECORD} has a file whose digest differs from the recorded one."
            )
    if not record.versions:
        raise VerificationFailed(f"{RECORD} holds no study.")
    return replace(as_set_down(study, record), results=results), record


def recorded_hashes(archive: StudyArchive) -> dict[str, set[str]]:
    """Return the hashes, by name, of the plug-ins used for the runs."""
    hashes: dict[str, set[str]] = {}
    for folder in archive.runs:
        for name, digest in read_yaml(folder / "config.yaml").get(KEY, {}).items():
            hashes.setdefault(str(name), set()).add(str(digest))
    return hashes


def refuse_runs(jobs: Iterable[PoolJob]) -> Iterator[tuple[PoolJob, str | None]]:
    """Raise VerificationFailed if a run is missing or has a different results version."""
    for job in jobs:
        if isinstance(job, RunJob) and job.config is not None and job.replaces:
            raise VerificationFailed(f"{job.name} is {other_version(job.config)}.")
        if job.due:
            raise VerificationFailed(
                f"{job.name} is missing: the runs used other settings, plug-ins "
                "or data than the study's file gives here."
            )
    return iter(())


def check_runs(maker: RunMaker, archive: StudyArchive) -> None:
    """Raise VerificationFailed unless the archive has exactly the runs of the study."""
    asked = {job.folder for job in maker.jobs.values() if job.folder.is_dir()}
    for folder in sorted(asked ^ archive.runs):
        why = "is missing" if folder in asked else "is not a run of the study"
        raise VerificationFailed(f"{folder.relative_to(archive.folder)} {why}.")
    for folder, digest in maker.digests.items():
        place = folder.relative_to(archive.folder)
        if load_experiment(folder / "config.yaml", None).digest != digest:
            raise VerificationFailed(f"{place} differs in settings from its study: config.yaml.")
    for folder in sorted(asked):
        place, summary = folder.relative_to(archive.folder), read_summary(folder)
        last = read_metrics(folder)[-1:]
        if summary is not None and last != [{"kind": "summary", **summary}]:
            raise VerificationFailed(f"{place}: summary.json differs from the end of its metrics.")


def compare_rows(
    name: str, stored: Sequence[Sequence[str]], computed: Sequence[Sequence[str]]
) -> None:
    """Raise VerificationFailed, naming the number, if two tables differ."""
    if [row[:2] for row in stored] != [row[:2] for row in computed] or stored[:1] != computed[:1]:
        raise VerificationFailed(f"{name} has different rows than the runs give.")
    for number, (ours, theirs) in enumerate(zip(stored, computed, strict=True), start=1):
        for column, was, now in zip_longest(computed[0], ours, theirs, fillvalue=""):
            if not same_text(was, now):
                raise VerificationFailed(
                    f"{name}, line {number}: {column} is {was}, but the runs give {now}."
                )


def same_text(was: str, now: str) -> bool:
    """Return whether two cells have the same text and, up to rounding, the same numbers."""
    return all(same_word(*pair) for pair in zip_longest(was.split(), now.split(), fillvalue=""))


def same_word(was: str, now: str) -> bool:
    try:
        return was == now or isclose(float(was), float(now), rel_tol=ROUNDING, abs_tol=1e-12)
    except ValueError:
        return False


def repeat(study: OpenedStudy, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Repeat a random sample of the runs, and yield each one's name and the result.

    Raises VerificationFailed if the results of a run differ.
    """
    jobs = sorted(job for job in study.maker.jobs if job in study.archive.runs)
    chosen = random.Random(seed).sample(jobs, min(count, len(jobs)))
    with private_folder() as scratch:
        again = [moved(study.maker.jobs[job], scratch) for job in chosen]
        for job, error in run_all(again):
            if error is not None and not job.diverged:
                raise VerificationFailed(f"{job.name} failed when repeated: {error}")
            before = study.archive.folder / job.folder.relative_to(scratch)
            with damage_named(study.archive):
                outcome = compare_runs(before, job.folder)
            yield job.name, outcome


def moved(job: RunJob | RetimedJob, results: Path) -> RunJob | RetimedJob:
    """Return the same job with a different folder."""
    if isinstance(job, RunJob):
        return replace(job, results=results)
    return replace(job, out=results / "retimed")


def compare_runs(archived: Path, repeated: Path) -> str:
    """Describe how closely two runs agree. Raises VerificationFailed if they differ."""
    if records_of(archived) == records_of(repeated):
        return "equal to the byte"
    before, after, other = results_in(archived), results_in(repeated), differing_parts(archived)
    if before.keys() != after.keys():
        raise VerificationFailed(f"{archived.name}: either the run or its repetition diverged.")
    differences = [
        f"{key} {before[key]:.6g} in the archive, {after[key]:.6g} here"
        for key in before
        if before[key] != after[key]
    ]
    text = "; ".join(differences[:3]) or "a worker's record differs"
    close = all(isclose(before[key], after[key], rel_tol=TOLERANCE) for key in before)
    if not other or not close:
        why = f"other {', '.join(other)} than in the archive" if other else "the same machine"
        raise VerificationFailed(f"{archived.name}: {text} ({why}).")
    return f"within {100 * TOLERANCE:g} % (other {', '.join(other)}): {text}"


def records_of(folder: Path) -> list[dict[str, Any]]:
    """Return all records, with the summary stripped of what depends on the machine."""
    records = read_metrics(folder)
    return [{key: record[key] for key in record if key not in OWN} for record in records]


def results_in(folder: Path) -> dict[str, float]:
    """Return the averaged model's losses, a node's bytes and, if simulated, the time."""
    summary: Mapping[str, Any] = read_summary(folder) or {}
    costs = ("bytes_per_node",) if summary.get("clock") == "wall" else ("bytes_per_node", "time_s")
    results = {
        f"loss at epoch {record['epoch']:g}": record.get("loss")
        for record in read_metrics(folder)
        if record["kind"] == "average"
    } | {key: summary.get(key) for key in costs}
    return {key: float(value) for key, value in results.items() if isinstance(value, int | float)}


def differing_parts(archived: Path) -> list[str]:
    """Return what differs from the machine and versions of an archived run.

    Runs of a study share pretrained models, so the run's model may come from any of its machines.
    """
    here, there = environment(), read_json(archived / "environment.json")
    config = read_summary(archived) or {}
    real = ["timing of real processes"] if config.get("clock") == "wall" else []
    other = [key for key in SAME_MACHINE if here[key] != there.get(key)] + real
    if load_experiment(archived / "config.yaml", None).run.pretrain.steps:
        makers = (read_json(folder / "environment.json") for folder in archived.parent.iterdir())
        if any(folder["processor"] != here["processor"] for folder in makers):
            other.append("processor of the pretrained model")
    return other
