"""The archive of a study, ``study.zip``: its record, its tables, and the runs behind them.

``archive.json`` has the checksum of each file. The bytes of an archive depend only on its files.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from sgp_runner._version import __version__
from sgp_runner.studies.arms import RunMaker
from sgp_runner.studies.study_file import names_folder
from sgp_runner.studies.study_record import FILE as RECORD
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.files import checksum
from sgp_runner.utils.reading import MIB, open_regular, read_json

FORMAT = 2  # higher in each results version
FILE = "study.zip"
INDEX = "archive.json"
TABLES = ("table.csv", "budget.csv")
FOLDERS = ("runs", "retimed")
RUN_FILE = re.compile(
    r"config\.yaml|(?:diverged|environment|summary)\.json|metrics(?:\.rank\d{1,6})?\.jsonl"
)
MEMBER = re.compile(
    rf"(?:{'|'.join(map(re.escape, (INDEX, RECORD, *TABLES)))}"
    rf"|(?:{'|'.join(FOLDERS)})/\w[\w.+=,-]{{0,250}}/(?:{RUN_FILE.pattern}))",
    re.ASCII,
)
# Errors of a damaged file; RuntimeError: it is encrypted, or compressed in an unknown way.
UNREADABLE = (OSError, ValueError, RuntimeError, EOFError, BadZipFile, zlib.error)
MAX_MEMBERS = 50_000
MAX_BYTES = 2048 * MIB  # of all files


class VerificationFailed(RuntimeError):
    """Raised when files of an archive contradict each other or a repeated run."""


@dataclass(frozen=True)
class StudyArchive:
    """The files of an archive, in a folder.

    name: name of the study
    answer: its answer as a sentence
    version: version of sgp-run that wrote the archive
    folder: folder of the study
    files: the paths of all files except the index, relative to the folder
    """

    name: str
    answer: str
    version: str
    folder: Path
    files: Sequence[str]

    @property
    def runs(self) -> set[Path]:
        """The folders of all runs."""
        return {(self.folder / file).parent for file in self.files if "/" in file}


def write_archive(maker: RunMaker, answer: str) -> Path:
    """Write the archive of a study whose runs and tables are complete, and return its path."""
    folder = maker.study.folder
    files = [folder / name for name in (RECORD, *TABLES)]
    for run in sorted(run for run in maker.jobs if run.is_dir()):
        files += sorted(file for file in run.iterdir() if RUN_FILE.fullmatch(file.name))
    index = {
        "format": FORMAT,
        "name": maker.study.name,
        "answer": answer,
        "sgp_run": __version__,
        "files": {file.relative_to(folder).as_posix(): checksum(file) for file in files},
    }
    part = folder / f".{FILE}.part"
    try:
        with ZipFile(part, "w") as archive:
            text = json.dumps(index, indent=1, ensure_ascii=False)
            archive.writestr(member(INDEX), f"{text}\n")
            for file in files:
                with (
                    file.open("rb") as source,
                    archive.open(member(file.relative_to(folder).as_posix()), "w") as target,
                ):
                    shutil.copyfileobj(source, target)
        return part.replace(folder / FILE)
    except OSError as error:
        raise ConfigError("results", f"cannot write to {folder}: {error.strerror}.") from error


def member(name: str) -> ZipInfo:
    """Return a compressed member of an archive, with the same time stamp as all members."""
    info = ZipInfo(name)
    info.compress_type, info.create_system, info.external_attr = ZIP_DEFLATED, 3, 0o644 << 16
    return info


def extract(path: Path, results: Path) -> StudyArchive:
    """Write the files of an archive into the folder ``results``, and check their checksums.

    No code from the archive is executed. Raises ConfigError for a file that is not an archive of
    this version or has invalid names or sizes, and VerificationFailed for a wrong checksum.
    """
    try:
        with open_regular(path, MAX_BYTES) as opened, ZipFile(opened) as archive:
            members = archive.infolist()
            check_members(members)
            folder = results / ".archive"
            for member in members:
                target = folder / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out)
        index = read_json(folder / INDEX)
        check_index(index)
    except FileNotFoundError:
        raise ConfigError("study", f"there is no file '{path}', or it has no {INDEX}.") from None
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise ConfigError(
            "study", f"{path} is not a readable archive of a study: {reason}."
        ) from None
    home = results / "studies" / str(index["name"])
    home.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(home)
    check_sums(index["files"], home, {member.filename for member in members})
    return StudyArchive(index["name"], index["answer"], index["sgp_run"], home, [*index["files"]])


def check_members(members: Sequence[ZipInfo]) -> None:
    """Raise ValueError for names or sizes that `write_archive` never writes."""
    if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > MAX_BYTES:
        raise ValueError(f"it has over {MAX_MEMBERS} files or {MAX_BYTES // MIB} MiB")
    names = [member.filename for member in members]
    for name in names:
        if not MEMBER.fullmatch(name):
            raise ValueError(f"'{name[:80]}' is not a file of a study")
    if len(set(names)) < len(names):
        raise ValueError("two of its files have the same name")


def check_index(index: object) -> None:
    """Raise ValueError if ``archive.json`` does not have the form that `write_archive` writes."""
    content: Mapping[str, object] = index if isinstance(index, Mapping) else {}
    if content.get("format") != FORMAT:
        raise ValueError(
            f"it is of version {content.get('sgp_run')} of sgp-run, neither comparable with this "
            f"version nor resumable, and answers: {content.get('answer')}"
        )
    name, *texts = (content.get(key) for key in ("name", "answer", "sgp_run"))
    if not isinstance(content.get("files"), Mapping) or not all(
        isinstance(text, str) and text.isprintable() for text in texts
    ):
        raise ValueError(f"its {INDEX} is incomplete")
    if not names_folder(str(name)):
        raise ValueError(f"'{name}' cannot name a folder")


def check_sums(sums: Mapping[str, object], folder: Path, names: set[str]) -> None:
    """Raise VerificationFailed unless the files match the index."""
    for name in sorted({*sums, RECORD, *TABLES} ^ (names - {INDEX})):
        raise VerificationFailed(f"{name} is missing in the archive, or in its {INDEX}.")
    for name, digest in sums.items():
        if checksum(folder / name) != digest:
            raise VerificationFailed(f"{name} was changed: its checksum is not the one in {INDEX}.")
