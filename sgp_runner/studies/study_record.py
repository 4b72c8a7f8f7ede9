"""The record of a study, ``study.json``: its design, when it was recorded, and the code version.

It is written before the first run. A file changed afterwards is a different study, or an amendment
that says why it was changed; the record then has both versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sgp_runner.studies.study_file import PILOT_SEEDS, SEARCH_SEEDS, StudyFile
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.files import replace_file
from sgp_runner.utils.provenance import environment
from sgp_runner.utils.reading import read_json, read_text

FILE = "study.json"
LOSS, SEARCH, RANKS = "loss", 2, "ranks"
ENDS = ("summary", "diverged")  # files of a run that has ended
SEED = re.compile(r"^seed: (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class StudyRecord:
    """The versions of a study's file, in order.

    versions: for each version, its ``digest``, its ``content``, the reason (``amended``), the
        studies from which it was merged (``merged``), the measure that searches minimise
        (``searched_by``), the number of their rule (``search``), how diverged runs count
        (``diverged``), whether runs that decide had ended (``results``), and code, machine, command
        and time (UTC) as in ``environment.json``
    """

    versions: Sequence[Mapping[str, Any]]

    @property
    def amendments(self) -> list[tuple[str, str]]:
        """Time and reason of each change after the first run."""
        return [(str(version["started"]), str(version["amended"])) for version in self.versions[1:]]

    @property
    def changes(self) -> list[tuple[Mapping[str, Any], bool]]:
        """Each later version, and whether results were known; in old records, if seeds changed."""

        def seeds(version: Mapping[str, Any]) -> object:
            return version["content"].get("seeds")

        return [
            (after, after.get("results", seeds(before) != seeds(after)))
            for before, after in pairwise(self.versions)
        ]

    @property
    def looks(self) -> int:
        """The number of looks at the results: 1, plus 1 for each change after they were known."""
        return 1 + sum(is_look for _, is_look in self.changes)

    @property
    def sources(self) -> list[str]:
        """A description of each study merged into this one."""
        return [
            f"{source['name']} (set down {source['started']}; {', '.join(source['arms'])})"
            for source in self.versions[0].get("merged", ())
        ]

    @property
    def searched_by(self) -> str:
        """The measure that searches minimise."""
        return str(self.versions[0].get("searched_by", LOSS))

    @property
    def search(self) -> int:
        """The number of the search rule; 1: that of `tuning.settle_earlier`."""
        return int(self.versions[0].get("search", 1))

    @property
    def by_ranks(self) -> bool:
        """Whether diverged runs count by rank; in earlier records, they count in means."""
        return self.versions[-1].get("diverged") == RANKS

    @property
    def commit(self) -> str:
        """The commit of the code when the study was recorded; empty outside a clone."""
        git = self.versions[0].get("git") or {}
        return str(git.get("commit") or "")[:12] + (" with changes" if git.get("dirty") else "")

    @property
    def set_down(self) -> str:
        """The time at which the study was recorded, in UTC."""
        return str(self.versions[0]["started"])


def set_down(study: StudyFile) -> StudyRecord:
    """Write or extend the record of a study and return it.

    Raises ConfigError if the file differs from the record and gives no reason.
    """
    path = study.folder / FILE
    versions = read_versions(path)
    reasons = {"", *(str(version.get("amended")) for version in versions)}
    is_new = study.amended not in reasons
    if versions and versions[-1]["digest"] == study.digest:
        if StudyRecord(versions).by_ranks or not is_new:
            return StudyRecord(versions)
    elif versions and not is_new:
        raise ConfigError(
            "study",
            f"{', '.join(changed(versions[-1]['content'], study.content))} changed after the "
            f"study in {study.folder} was set down: rename the file, or explain in "
            "amended: what was changed and why.",
        )
    version = {
        "digest": study.digest,
        "content": study.content,
        "amended": study.amended,
        "searched_by": str(study.tune.by or LOSS),
        "search": SEARCH,
        "diverged": RANKS,
        "results": has_results(study.folder),
        **environment(),
    }
    study.folder.mkdir(parents=True, exist_ok=True)
    return written(path, [*versions, version])


def has_results(folder: Path) -> bool:
    """Return whether any run of a study that is not part of a search or pilot has finished."""
    ended = (path.parent for path in folder.glob("runs/*/*.json") if path.stem in ENDS)
    seeds = (SEED.search(read_text(run / "config.yaml")) for run in ended)
    return any(seed and int(seed[1]) not in (*SEARCH_SEEDS, *PILOT_SEEDS) for seed in seeds)


def written(path: Path, versions: Sequence[Mapping[str, Any]]) -> StudyRecord:
    replace_file(path, json.dumps({"versions": versions}, indent=2, default=str) + "\n")
    return StudyRecord(versions)


def as_set_down(study: StudyFile, record: StudyRecord) -> StudyFile:
    """Return the study with the search rule in its record; earlier records use the loss."""
    by = None if record.searched_by == LOSS else study.tune.by
    return replace(study, tune=replace(study.tune, by=by, earlier=record.search < SEARCH))


def read_versions(path: Path) -> list[Mapping[str, Any]]:
    try:
        versions = read_json(path)["versions"]
        assert all(isinstance(version["digest"], str) for version in versions)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise ConfigError(
            "study", f"{path} cannot be read: restore it, or give the study another name."
        ) from None
    return list(versions)


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys that differ, except ``amended``."""
    keys = [key for key in {**before, **after} if key != "amended"]
    return [key for key in keys if before.get(key) != after.get(key)]
