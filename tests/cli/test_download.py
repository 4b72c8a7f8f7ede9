"""``sgp-run download``, from a server on this machine."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from helpers.corpora import cifar, md5

from sgp_runner.cli.main import main
from sgp_runner.data.cifar import ARCHIVE_BYTES, Cifar, kind_of

ARCHIVE = "cifar-10-python.tar.gz"


@contextmanager
def serving(content: bytes, most: int | None = None) -> Iterator[tuple[str, list[str]]]:
    """The address of a server of ``content``, and the ranges that it is asked for.

    most: bytes after which its first answer breaks off
    """
    ranges: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Stay silent."""

        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            ranges.append(wanted)
            rest = content[int(wanted.removeprefix("bytes=").removesuffix("-")) :]
            self.send_response(206 if rest else 416)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest[: most if len(ranges) == 1 else None])

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/{ARCHIVE}", ranges
        server.shutdown()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An archive as the published one, with few images; its checksum and size pass for the true."""
    path = tmp_path / ARCHIVE
    folder = cifar(tmp_path / "published", monkeypatch) / "cifar-10-batches-py"
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, folder.name)
    monkeypatch.setattr(kind_of("cifar10"), "tgz_md5", md5(path))
    monkeypatch.setitem(ARCHIVE_BYTES, "cifar10", path.stat().st_size)
    return path.read_bytes()


def test_a_download_is_checked_and_unpacked(
    archive: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(archive) as (url, ranges):
        assert main(["download", "cifar10", f"url={url}"]) == 0
        assert main(["download", "cifar10", f"url={url}"]) == 0
    assert capsys.readouterr() == (
        f"downloading {url}\ndata/cifar-10-batches-py: cifar10, complete\n"
        "data/cifar-10-batches-py already exists\n",
        "",
    )
    assert ranges == ["bytes=0-"]
    assert os.listdir("data") == ["cifar-10-batches-py"]
    assert len(Cifar("cifar10").load(torch.float32).train) == 200


def test_an_interrupted_download_continues(
    archive: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(archive, most=1000) as (url, ranges):
        command = ["download", "cifar10", "data.root=here", f"url={url}"]
        assert main(command) == 2
        assert capsys.readouterr().err == (
            f"sgp-run: download: cannot download {url} (the connection broke); repeat the command "
            "to continue, or set url=... to another address of the same file.\n"
        )
        assert (Path("here") / ARCHIVE).stat().st_size == 1000
        assert not Path("here/cifar-10-batches-py").exists()
        assert main(command) == 0
    assert ranges == ["bytes=0-", "bytes=1000-"]
    assert os.listdir("here") == ["cifar-10-batches-py"]


@pytest.mark.parametrize("resumed", [0, 10**6])
def test_an_endless_file_is_read_to_the_size_of_the_archive(
    archive: bytes,
    resumed: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("data").mkdir()
    Path("data", ARCHIVE).write_bytes(bytes(resumed))
    written: list[int] = []
    removed = Path.unlink
    monkeypatch.setattr(
        Path, "unlink", lambda path: (written.append(path.stat().st_size), removed(path))
    )
    assert main(["download", "cifar10", "url=file:///dev/zero"]) == 2
    assert "is not the published one (its checksum differs)" in capsys.readouterr().err
    assert written == [len(archive)]
    assert os.listdir("data") == []


@pytest.mark.parametrize("url", ["", "foo", "https://["])
def test_an_invalid_url_is_refused_with_its_key(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download", "cifar10", f"url={url}"]) == 2
    assert capsys.readouterr().err == (
        f"sgp-run: url: '{url}' is not a URL: write url=https://...\n"
    )


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download", "cifar10", "url=http://127.0.0.1:9/x.tar.gz"]) == 2
    sentence = r"sgp-run: download: cannot download http://127.0.0.1:9/x.tar.gz \(.*refused\); .*\n"
    assert re.fullmatch(sentence, capsys.readouterr().err)
    assert main(["download", "cifar10", "url=http://a b/x.tar.gz"]) == 2
    assert "cannot download http://a b/x.tar.gz (URL can't contain" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download", "cifar10", f"data.root={'x' * 300}"]) == 2
    assert capsys.readouterr().err.endswith("x: File name too long.\n")


def test_a_damaged_folder_is_named(archive: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("published/cifar-10-batches-py/test_batch")
    path.write_bytes(b"x")
    assert main(["download", "cifar10", "data.root=published"]) == 2
    assert capsys.readouterr().err == (
        f"sgp-run: download: {path} is damaged: its checksum is not the published one; remove "
        "published/cifar-10-batches-py first.\n"
    )
