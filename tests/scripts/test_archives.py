"""The archived runs: that they are those of the table, that the same runs give the same bytes, and
what unpacking leaves alone.
"""

from __future__ import annotations

import csv
import hashlib
import json
import lzma
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.paths import ROOT

from reproduce import archives
from reproduce.archives import (
    LARGEST,
    archive_of,
    archived,
    by_run,
    members,
    pack,
    tar_of,
    typed,
    unpack,
)
from sgp_runner.config.command_line import parse
from sgp_runner.config.experiment import make_experiment
from sgp_runner.config.overrides import compose, configs
from sgp_runner.recording.divergence import FILE as DIVERGED

REPRODUCED = ROOT / "results" / "reproduced"
ARCHIVES = sorted((REPRODUCED / "logs").iterdir())
A_TASK_AND_A_TABLE = ("language12.tar.xz", "timing.tar.xz")


def test_archives_hold_the_runs_of_the_table_and_their_logs_have_its_checksums() -> None:
    checksums = {(line["archive"], line["run"]): line["log_sha256"] for line in table()}
    runs = {
        (archive.name, run): files
        for archive in ARCHIVES
        for run, files in by_run(members(archive))
    }
    assert {
        place: hashlib.sha256(files["metrics.jsonl"]).hexdigest() for place, files in runs.items()
    } == checksums
    assert {archive_of(run) == archive for archive, run in runs} == {True}
    results = {"summary.json", "diverged.json"}
    assert {frozenset(files) - results for files in runs.values()} == {
        frozenset({"config.yaml", "environment.json", "metrics.jsonl"})
    }
    assert all(results & set(files) for files in runs.values())
    assert DIVERGED in archives.FILES


def test_an_archive_is_small_and_its_bytes_follow_from_its_contents() -> None:
    for archive in ARCHIVES:
        content = archive.read_bytes()
        assert len(content) < LARGEST == 5_000_000
        assert lzma.decompress(content) == tar_of(members(archive))


def table(path: Path = REPRODUCED / "runs.csv") -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_claims_link_files_and_name_runs_that_are_archived() -> None:
    claims = ROOT / "results" / "claims"
    described = ROOT / "docs" / "concepts.md"
    record = ROOT / "results" / "claims_record.md"
    pages = [described, record, claims.with_suffix(".md"), *sorted(claims.glob("*.md"))]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    links = {
        (page.parent / target).resolve(): (page.name, target)
        for page, text in texts.items()
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    }
    assert [link for path, link in links.items() if not path.is_file()] == []
    assert {claims / "39-des_loc.zip", REPRODUCED / "runs.csv"} < links.keys()
    assert not {path for path in claims.glob("*.zip") if path not in links}
    archive = {line["run"] for line in table()}
    named = {run for line in table(claims / "findings.csv") for run in line["runs"].split()}
    assert len(named) > 500 and named <= archive


def test_commands_of_the_table_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # one of them names a file there
    commands = [shlex.split(line["command"]) for line in table()]
    assert {first for first, *_ in commands} == {"sgp-run"}
    quoted = {
        tuple(word for word in words if shlex.quote(word) != word): words for words in commands
    }
    assert ("faults.slow_nodes={3: 10}",) in quoted
    with configs():
        parse(sorted({word for _, *words in commands for word in words}))
        for _, *words in quoted.values():
            make_experiment(compose(parse(words)))


def test_a_value_that_was_recorded_in_pieces_is_whole_again() -> None:
    words = ["sgp-run", "nodes=4", "faults.slow_nodes={3:", "10,", "2:", "5}", "seed=1"]
    assert typed(words) == "sgp-run nodes=4 'faults.slow_nodes={3: 10, 2: 5}' seed=1"


def test_the_repository_has_the_commits_of_all_runs() -> None:
    if git("rev-parse", "--is-shallow-repository").stdout != "false\n":
        pytest.skip("needs a clone with its history")
    for commit in {line["commit"] for line in table()}:
        assert git("cat-file", "-e", commit).returncode == 0, commit


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder of results with two archives, unpacked."""
    (tmp_path / "logs").mkdir()
    for name in A_TASK_AND_A_TABLE:
        shutil.copy(REPRODUCED / "logs" / name, tmp_path / "logs")
    unpack(tmp_path)
    return tmp_path


def test_packing_again_gives_the_same_bytes(clone: Path) -> None:
    pack(clone)
    table = (clone / "runs.csv").read_bytes()
    for name in A_TASK_AND_A_TABLE:
        assert (clone / "logs" / name).read_bytes() == (REPRODUCED / "logs" / name).read_bytes()
    assert {*table.splitlines()} < {*(REPRODUCED / "runs.csv").read_bytes().splitlines()}

    made = []  # of files with other times and modes
    for mode in (0o600, 0o644):
        shutil.rmtree(clone / "logs")
        for path in clone.glob("runs/*/*"):
            path.chmod(mode)
            path.touch()
        pack(clone)
        made.append({path.name: path.read_bytes() for path in (clone / "logs").iterdir()})
    assert made[0] == made[1] and sorted(made[0]) == list(A_TASK_AND_A_TABLE)
    assert (clone / "runs.csv").read_bytes() == table


def test_unpacking_keeps_a_run_that_was_started_later_and_replaces_an_earlier_one(
    clone: Path,
) -> None:
    earlier, later = clone / "runs/timing-sgp_sgp_90", clone / "runs/timing-sgp_sgp_270"
    archived_config = (earlier / "config.yaml").read_bytes()
    for folder, started in (
        (earlier, "2020-01-01T00:00:00+00:00"),
        (later, "2100-01-01T00:00:00+00:00"),
    ):
        (folder / "environment.json").write_text(
            json.dumps({"started": started, "command": ["sgp-run", "nodes=2"], "git": None})
        )
        (folder / "config.yaml").write_text("nodes: 2\n")
        (folder / "diverged.json").write_text("{}")
    unpack(clone)
    assert (earlier / "config.yaml").read_bytes() == archived_config and not (
        earlier / "diverged.json"
    ).exists()
    assert (later / "config.yaml").read_text() == "nodes: 2\n" and (
        later / "diverged.json"
    ).exists()


def test_runs_that_have_diverged_are_archived_and_unfinished_ones_are_not(clone: Path) -> None:
    diverged, unfinished = clone / "runs/timing-sgp_sgp_90", clone / "runs/language12-unfinished"
    (diverged / "summary.json").rename(diverged / "diverged.json")
    (diverged / "environment.json").write_text(
        json.dumps({"started": "2100", "command": ["sgp-run", "nodes=2"], "git": None})
    )
    shutil.copytree(diverged, unfinished)
    (unfinished / "diverged.json").unlink()
    pack(clone)
    names = [name for archive in A_TASK_AND_A_TABLE for name in members(clone / "logs" / archive)]
    assert "timing-sgp_sgp_90/diverged.json" in names and not [
        name for name in names if name.startswith("language12-unfinished")
    ]
    with (clone / "runs.csv").open(encoding="utf-8", newline="") as file:
        lines = {line["run"]: line for line in csv.DictReader(file)}
    line = lines["timing-sgp_sgp_90"]
    assert (line["archive"], line["command"], line["commit"], line["hours"]) == (
        "timing.tar.xz",
        "sgp-run nodes=2",
        "",
        "",
    )
    assert len(lines) == 37 and "language12-unfinished" not in lines


def test_an_archive_that_would_be_too_large_is_refused(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST", 100)
    shutil.rmtree(clone / "logs")
    with pytest.raises(
        ValueError,
        match=r"^language12\.tar\.xz has \d+ bytes, over 100: begin the names of some of its runs ",
    ):
        pack(clone)


def test_a_page_names_archive_and_member() -> None:
    assert archived(Path("reproduced/runs/claim10-n1-k1024-s1")) / "metrics.jsonl" == Path(
        "reproduced/logs/claim10.tar.xz#claim10-n1-k1024-s1/metrics.jsonl"
    )
