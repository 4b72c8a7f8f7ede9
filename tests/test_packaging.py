"""What is tracked, and what a wheel and a source distribution of it hold."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from helpers.paths import ROOT

import release_notes
from sgp_runner import __version__

METADATA = ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE")


def tracked(*folders: str) -> list[str]:
    """Tracked files that are there."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", *folders],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


def test_no_tracked_file_is_a_symbolic_link() -> None:
    files = tracked()
    assert "setup.cfg" in files and not [name for name in files if (ROOT / name).is_symlink()]


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_release_notes_are_a_section_of_the_changes() -> None:
    changes = "# Changelog\n\n## [0.2.0] - 2026-12-01\n\n- One.\n\n## [0.1.0]\n\n- None.\n"
    assert release_notes.notes(changes, "0.2.0") == "- One."
    assert release_notes.notes(changes, "0.1.0") == "- None."
    assert release_notes.notes(changes, "0.1") == ""
    assert release_notes.main("v0.0.0") == (
        f"The tag is v0.0.0, but sgp_runner/_version.py has {__version__}."
    )


def test_a_release_has_at_most_40_lines_of_changes() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.*?)\]", changes, re.MULTILINE)
    assert versions[0] == "Unreleased" and "0.1.0" in versions
    lengths = {name: release_notes.notes(changes, name).count("\n") + 1 for name in versions[1:]}
    assert not {name: lines for name, lines in lengths.items() if lines > 40}


def test_extras_are_whole() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (names,) = extras["all"]
    assert set(re.findall(r"\w+", names)) - {"sgp", "runner"} == {
        *("hf", "hosts", "loggers", "mpi", "optuna", "report", "slurm", "text", "vision")
    }
    asked = re.findall(
        r"require\(\s*\"[\w./]+\", \"(\w+)\"",
        "".join(path.read_text() for path in (ROOT / "sgp_runner").rglob("*.py")),
    )
    hosts = {"accelerate", "lightning", "trainer"}
    assert set(asked) == {"optuna", "report", "slurm", "text", "vision", *hosts}
    assert set(asked) < extras.keys()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that was built of it."""
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    for name in tracked("sgp_runner", "configs", *METADATA):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(command, cwd=source, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_a_wheel_holds_the_package_and_its_data_alone(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(
        [*tracked("sgp_runner"), *(f"sgp_runner/{name}" for name in tracked("configs"))]
    )
    assert {
        "sgp_runner/report/published.csv",
        "sgp_runner/configs/config.yaml",
        "sgp_runner/report/page/page.css",
    } <= set(names)
    assert not [
        name
        for name in names
        if {"scripts", "reproduce", "results", "tests"} & set(PurePosixPath(name).parts)
    ]


def test_a_source_distribution_builds_the_same_package(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {*tracked("sgp_runner", "configs"), *METADATA} <= names
