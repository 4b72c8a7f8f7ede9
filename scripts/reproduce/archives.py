"""Finished runs as compressed archives, and a table of all runs.

Runs share an archive if their names begin with the same word (up to the first hyphen): the word of
a claim (``claim8``), of a task shared by several claims (``digits``), of searches (``tune``) or of
a table (``timing``). A folder of results contains

- ``runs/NAME/``: the folders of runs, which git ignores;
- ``logs/WORD.tar.xz``: the same runs. The bytes depend only on the contents of the files;
- ``runs.csv``: a line for each run, with its command, its results, its commit, and the checksum of
  its ``metrics.jsonl``.

Run as a program, the module unpacks all archives. It imports only the standard library.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import lzma
import shlex
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

FILES = ("config.yaml", "diverged.json", "environment.json", "metrics.jsonl", "summary.json")
FACTS = ("algorithm", "model", "data", "nodes", "epochs", "seed")  # keys of a summary
RESULTS = (
    "metric",
    "average",
    "worker_mean",
    "bleu",
    "time_s",
    "steps",
    "bytes_per_node",
    "ms_per_iteration",
    "hours",
)
HEAD = (
    "run",
    "archive",
    "command",
    *FACTS,
    *RESULTS,
    "commit",
    "dirty",
    "log_sha256",
)
LARGEST = 5_000_000  # bytes


def archive_of(run: str) -> str:
    """Return the name of the archive that contains the run."""
    return f"{run.partition('-')[0]}.tar.xz"


def archived(folder: Path) -> Path:
    """Return the path of a run in its archive, as it is written on pages.

    For ``runs/digits-sgp-n16-s1`` this is ``logs/digits.tar.xz#digits-sgp-n16-s1``.
    """
    return folder.parents[1] / "logs" / f"{archive_of(folder.name)}#{folder.name}"


def unpack(results: Path) -> None:
    """Write the folders of archived runs, unless a folder has a later run of the same name."""
    for archive in sorted((results / "logs").glob("*.tar.xz")):
        for run, files in by_run(members(archive)):
            folder = results / "runs" / run
            environment = folder / "environment.json"
            if environment.exists() and started(environment.read_bytes()) > started(
                files["environment.json"]
            ):
                continue
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name, content in files.items():
                (folder / name).write_bytes(content)


def pack(results: Path) -> None:
    """Write the archives and the table of all runs that have finished or diverged.

    The bytes of an archive with unchanged contents do not change. Raises ValueError if an archive
    would be larger than `LARGEST`.
    """
    logs = results / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    finished = {
        path.parent.name
        for name in ("summary.json", "diverged.json")
        for path in results.glob(f"runs/*/{name}")
    }
    runs = {run: read(results / "runs" / run) for run in sorted(finished)}
    names = {archive_of(run) for run in runs}
    for archive in logs.glob("*.tar.xz"):
        if archive.name not in names:
            archive.unlink()
    for name in sorted(names):
        files = {
            f"{run}/{file}": content
            for run, contents in runs.items()
            if archive_of(run) == name
            for file, content in contents.items()
        }
        if not (logs / name).exists() or members(logs / name) != files:
            (logs / name).write_bytes(compressed(name, tar_of(files)))
    with (results / "runs.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, HEAD, lineterminator="\n")
        table.writeheader()
        table.writerows(line_of(run, files) for run, files in runs.items())


def read(folder: Path) -> dict[str, bytes]:
    """Return the archived files of a run by name."""
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def members(archive: Path) -> dict[str, bytes]:
    """Return the contents of an archive by ``RUN/FILE``, in its order."""
    with tarfile.open(archive) as tar:
        return {
            member.name: contents.read()
            for member in tar
            if (contents := tar.extractfile(member)) is not None
        }


def by_run(files: Mapping[str, bytes]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield each run of an archive with the contents of its files by name."""
    for run, group in groupby(files.items(), key=lambda item: item[0].partition("/")[0]):
        yield run, {path.partition("/")[2]: content for path, content in group}


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive whose bytes depend only on the names and contents of the files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)  # time, owner and group are 0; the mode is 0644
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))
    return buffer.getvalue()


def compressed(name: str, tar: bytes) -> bytes:
    """Return the archive compressed by xz, without a time stamp.

    Raises ValueError if it is too large.
    """
    content = lzma.compress(tar)
    if len(content) > LARGEST:
        raise ValueError(
            f"{name} has {len(content)} bytes, over {LARGEST}: begin the names of some of its runs "
            "with a different word."
        )
    return content


def line_of(run: str, files: Mapping[str, bytes]) -> dict[str, object]:
    """Return the table row of a run. If it diverged, columns of the summary are empty."""
    environment = json.loads(files["environment.json"])
    summary = json.loads(files.get("summary.json", b"{}"))
    git = environment["git"] or {}
    return {
        "run": run,
        "archive": archive_of(run),
        "command": typed(environment["command"]),
        **{key: summary.get(key) for key in (*FACTS, *RESULTS)},
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "log_sha256": hashlib.sha256(files["metrics.jsonl"]).hexdigest(),
    }


def typed(pieces: Sequence[str]) -> str:
    """Return a recorded command as a user would type it.

    Older runs recorded a value with spaces as several words.
    """
    whole = list(pieces[:1])
    for word in pieces[1:]:
        if "=" in word:
            whole.append(word)
        else:
            whole[-1] += f" {word}"
    return shlex.join(whole)


def started(environment: bytes) -> str:
    """Return the UTC time at which a run was started; later times compare as larger."""
    return str(json.loads(environment)["started"])


if __name__ == "__main__":
    unpack(Path(*sys.argv[1:]))
