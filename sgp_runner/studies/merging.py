"""Merging of archives of studies with the same task, budget and rules into one table of arms.

Only runs in the archives are used. The first archive provides the baseline and the primary
comparison, and all other comparisons are adjusted together by Holm's method. A setting that belongs
to one algorithm is searched where an arm has this algorithm, so the searches of all archives are
joined.
"""

from __future__ import annotations

import shutil
from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

from sgp_runner.config.plugins.named_files import NamedFiles
from sgp_runner.studies.arms import RunMaker, check_arms
from sgp_runner.studies.conduct import conduct
from sgp_runner.studies.study_archive import VerificationFailed, write_archive
from sgp_runner.studies.study_file import StudyFile, study_of
from sgp_runner.studies.study_page import StudyPage, findings_of, write_study
from sgp_runner.studies.study_record import FILE as RECORD
from sgp_runner.studies.study_record import StudyRecord, as_set_down, changed, written
from sgp_runner.studies.tuning import further_seeds
from sgp_runner.studies.verification import OpenedStudy, opened, refuse_runs
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.lock import locked
from sgp_runner.utils.units import counted

FREE = {"question", "arms", "baseline", "primary", "results"}  # keys in which studies may differ


def merge(paths: Sequence[Path], name: str, plugins: Sequence[str] = ()) -> StudyPage:
    """Write the study ``name`` with the arms of all archives, its page and its archive.

    plugins: the user's copies of the files that the archives name

    Raises ConfigError, naming the settings, for studies whose settings differ, and
    VerificationFailed for an inconsistent archive.
    """
    if len(paths) < 2:
        raise ConfigError("merge", "give at least two archives, then the new study.")
    with ExitStack() as stack:
        studies = []
        for path in paths:
            try:
                studies.append(stack.enter_context(opened(path, plugins)))
            except VerificationFailed as error:
                raise VerificationFailed(f"{path.name}: {error}") from error
        for one, other in combinations(zip(paths, studies, strict=True), 2):
            check_rules(*one, *other)
        first = studies[0]
        content = {
            **first.study.content,
            "tune": {
                key: value for archived in studies for key, value in searches(archived).items()
            },
            "arms": arms_of(paths, studies),
            "baseline": first.study.baseline,
            "primary": first.study.primary,
        }
        study = study_of({key: content[key] for key in content if key != "results"}, name)
        if study.folder.exists():
            raise ConfigError("merge", f"{study.folder} already exists; choose another name.")
        with locked(study.folder):
            for archived in studies:
                copy_runs(archived, study.folder)
            record = merged_record(study, studies)
            hashes = [archived.files.hashes for archived in studies]
            files = NamedFiles(plugins, dict(ChainMap(*map(dict, hashes))))
            maker = RunMaker(as_set_down(study, record), refuse_runs, files.local)
            findings = findings_of(maker, conduct(maker, check_arms(maker)), record)
            page = write_study(maker, findings, record)
            write_archive(maker, page.answer)
            return page


def check_rules(path: Path, first: OpenedStudy, other_path: Path, other: OpenedStudy) -> None:
    """Raise ConfigError if two studies differ in more than their arms and the arms' searches."""
    keys = changed(rules(first, other), rules(other, first))
    if not keys and first.findings.done.seeds != other.findings.done.seeds:
        keys = ["seeds"]
    values = "; ".join(
        f"{key}: {first.study.content.get(key)} and {other.study.content.get(key)}" for key in keys
    )
    if how_searched(first) != how_searched(other):
        values = f"searches by {' and '.join(map(how_searched, (first, other)))}"
    if values:
        raise ConfigError(
            "merge",
            f"{path} and {other_path} differ in settings ({values}); only studies with the "
            "same task, budget and rules share a table.",
        )


def how_searched(study: OpenedStudy) -> str:
    """Describe a search: its measure, its rule and the seeds of its best candidates."""
    further = further_seeds(check_arms(study.maker).values(), study.study.tune.budget)
    record = study.record
    return f"{record.searched_by}, rule {record.search}, {counted(1 + further, 'seed')}"


def rules(study: OpenedStudy, other: OpenedStudy) -> dict[str, Any]:
    """Return the settings that ``other`` must have in common with a study."""
    searched = {
        key: value
        for key, value in searches(study).items()
        if any(other.maker.applies(key, arm) for arm in other.study.arms)
    }
    content = {**study.study.content, "tune": searched}
    return {key: value for key, value in content.items() if key not in FREE}


def searches(study: OpenedStudy) -> Mapping[str, Any]:
    return study.study.content.get("tune") or {}


def arms_of(paths: Sequence[Path], studies: Sequence[OpenedStudy]) -> dict[str, Any]:
    """Return all arms. Raises ConfigError if arms of the same name have different settings."""
    out: dict[str, Any] = {}
    for path, study in zip(paths, studies, strict=True):
        for name, overrides in study.study.content["arms"].items():
            if out.setdefault(name, overrides) != overrides:
                raise ConfigError(
                    "merge", f"the arm {name} has different settings in {path} ('{overrides}')."
                )
    return out


def copy_runs(study: OpenedStudy, folder: Path) -> None:
    """Copy the runs into ``folder``, except those already there."""
    for run in sorted(study.archive.runs):
        there = folder / run.relative_to(study.archive.folder)
        if not there.exists():
            shutil.copytree(run, there)


def merged_record(study: StudyFile, studies: Sequence[OpenedStudy]) -> StudyRecord:
    """Write and return the record: that of the first study, with the files of all studies.

    The amendments of all studies follow, each with the content of the merged study.
    """
    sources: list[Mapping[str, object]] = [
        {
            "name": source.study.name,
            "digest": source.study.digest,
            "started": source.record.set_down,
            "arms": [arm.name for arm in source.study.arms],
        }
        for source in studies
    ]
    merged = {"digest": study.digest, "content": study.content}
    first = {**studies[0].record.versions[0], **merged, "merged": sources}
    amendments = {
        str(version["digest"]): {
            **version,
            **merged,
            "results": is_look,
            "amended": f"{source.study.name}: {version['amended']}",
        }
        for source in studies
        for version, is_look in source.record.changes
    }
    return written(study.folder / RECORD, [first, *amendments.values()])
