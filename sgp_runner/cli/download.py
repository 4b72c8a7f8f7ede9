"""``sgp-run download NAME``: download, check and unpack data that needs no account.

An interrupted download continues where it stopped. A download ends at the size of the published
archive, even if the server sends more. The folder of the data set is created once it is complete.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from sgp_runner.cli import download_packaged
from sgp_runner.data import gutenberg, help_en_de, idx_images
from sgp_runner.data.packaged import ROOT
from sgp_runner.data.wmt16_en_de import ADDRESS
from sgp_runner.utils.errors import ConfigError, nearest

PUBLISHED = {
    **idx_images.SOURCES,
    **{source.name: source for source in (gutenberg.SOURCE, help_en_de.SOURCE)},
}
ARCHIVES = ("cifar10", "cifar100")
NAMES = (*ARCHIVES, *PUBLISHED)
SCRIPTS = {  # that unpack what cannot be downloaded without an account
    "imagenet": "get ILSVRC 2012 from image-net.org and unpack it with scripts/prepare_imagenet.sh",
    "wmt16_en_de": f"get wmt16_en_de.tar.gz from {ADDRESS} and run scripts/prepare_wmt16.sh",
}
USAGE = (
    f"write sgp-run download {'|'.join(NAMES)} [data.root=FOLDER], for example: sgp-run download "
    f"cifar10; {' and '.join(ARCHIVES)} take url=URL of the archive, the others data.path=FOLDER "
    "or package."
)
HELP = """usage: sgp-run download NAME [data.root=FOLDER] [url=URL | data.path=PATH]

Download, check and unpack a data set that needs no account; an interrupted
download continues.

  NAME        {names}
  data.root   the folder with all data sets (default: {root})
  url         another address of the archive ({archives})
  data.path   a folder or package that has the data (the others)

example
  sgp-run download fashion_mnist""".format(
    names=f"{', '.join(ARCHIVES)},\n              {', '.join(PUBLISHED)}",
    root=ROOT,
    archives=", ".join(ARCHIVES),
)
TIMEOUT = 60.0  # seconds without an answer
PIECE = 2**20  # bytes


def main(argv: Sequence[str]) -> int:
    """Download and unpack a data set. Raises ConfigError if that fails."""
    from sgp_runner.data.cifar import ARCHIVE_BYTES, defect, kind_of, url_of

    options = dict(argument.split("=", 1) for argument in argv if "=" in argument)
    names = [argument for argument in argv if "=" not in argument]
    allowed = {"data.root", "data.path" if names and names[0] in PUBLISHED else "url"}
    if len(names) != 1 or options.keys() - allowed:
        raise ConfigError("download", USAGE)
    (name,) = names
    if name in PUBLISHED:
        asked = (options.get("data.root", ROOT), options.get("data.path"))
        print(download_packaged.download(PUBLISHED[name], *asked), flush=True)
        return 0
    if name in SCRIPTS:
        raise ConfigError("download", f"{name} must be downloaded manually: {SCRIPTS[name]}.")
    if name not in NAMES:
        hint = nearest(name, NAMES) or f" Choose one of {', '.join(NAMES)}."
        raise ConfigError("download", f"there is no data set '{name}'.{hint}")
    root, url = Path(options.get("data.root", ROOT)), options.get("url", url_of(name))
    kind = kind_of(name)
    folder = root / kind.base_folder
    if os.path.exists(folder):  # unlike Path.exists, accepts any name
        if (damage := defect(root, kind)) is not None:
            raise ConfigError("download", f"{damage}; remove {folder} first.")
        print(f"{folder} already exists", flush=True)
        return 0
    try:
        root.mkdir(parents=True, exist_ok=True)
        archive = root / kind.filename
        fetch(url, archive, kind.tgz_md5, ARCHIVE_BYTES[name])
        unpack(archive, folder)
        archive.unlink()
    except OSError as error:
        raise ConfigError("download", f"cannot write to {root}: {error.strerror}.") from error
    if (damage := defect(root, kind)) is not None:
        raise ConfigError("download", f"{damage}, although the archive was complete.")
    print(f"{folder}: {name}, complete", flush=True)
    return 0


def fetch(url: str, path: Path, md5: str, size: int) -> None:
    """Download ``size`` bytes of ``url`` to ``path``, continuing an earlier attempt.

    Raises ConfigError if the server cannot be reached, or if the checksum of the file is wrong.
    """
    from torchvision.datasets.utils import check_integrity

    if check_integrity(str(path), md5):
        return
    received = path.stat().st_size if path.exists() else 0
    try:
        request = urllib.request.Request(url, headers={"Range": f"bytes={received}-"})
    except ValueError:
        raise ConfigError("url", f"'{url}' is not a URL: write url=https://...") from None
    print(f"downloading {url}", flush=True)
    total = received
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            received *= answer.status == 206  # else the server sends it from the start
            total = min(size, received + int(answer.headers.get("Content-Length") or 0))
            save(answer, path, received, size)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # nothing is left to send
            raise unreachable(url, error) from error
    except (
        urllib.error.URLError,
        HTTPException,
        TimeoutError,
        ConnectionError,
        ValueError,
    ) as error:
        raise unreachable(url, error) from error
    if path.stat().st_size < total:
        raise unreachable(url, ConnectionError("the connection broke"))
    if not check_integrity(str(path), md5):
        path.unlink()
        raise ConfigError(
            "download",
            f"the file from {url} is not the published one (its checksum differs) and was removed; "
            "set url=... to another address.",
        )


def save(answer: HTTPResponse, path: Path, received: int, size: int) -> None:
    """Append a response to a file that already has ``received`` bytes, up to ``size`` bytes.

    A terminal shows a progress bar. The rest of the response, if any, is not read.
    """
    from rich.progress import Progress

    with (
        path.open("ab" if received else "wb") as file,
        Progress(transient=True, disable=not sys.stdout.isatty()) as progress,
    ):
        task = progress.add_task(path.name, total=size, completed=received)
        while received < size and (piece := answer.read(min(PIECE, size - received))):
            file.write(piece)
            received += len(piece)
            progress.advance(task, len(piece))


def unreachable(url: str, error: Exception) -> ConfigError:
    reason = str(getattr(error, "reason", error))
    return ConfigError(
        "download",
        f"cannot download {url} ({reason}); repeat the command to continue, or set url=... to "
        "another address of the same file.",
    )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the archive; ``folder`` is created once all its files are complete."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(part, filter="data")
    (part / folder.name).rename(folder)
    part.rmdir()
