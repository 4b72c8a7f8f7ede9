"""Files of a data set, read in place from a folder, a Debian package or an npm package."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.reading import MIB, read_bytes

PACKAGES = (".deb", ".tgz")
AR = b"!<arch>\n"  # the first bytes of a .deb
AR_HEADER = 60  # bytes of the header of a member: its name in 16, its size in bytes 48 to 57
MAX_BYTES = 512 * MIB  # of a file or package


def contents(path: Path, wanted: re.Pattern[str]) -> dict[str, bytes]:
    """Return the contents of files whose paths match ``wanted``, keyed by the matched part.

    ``path`` is a file, a package or a folder; all files and packages in a folder are searched.
    Files that end with .gz are unpacked.

    Raises ConfigError if a file cannot be read.
    """
    found: dict[str, bytes] = {}
    for file in files_below(path):
        with readable(file):
            package = file.suffix in PACKAGES
            for name, content in members(file, wanted) if package else [(str(file), None)]:
                if match := wanted.search(name):
                    data = read_bytes(file, MAX_BYTES) if content is None else content
                    found[match[0]] = gzip.decompress(data) if name.endswith(".gz") else data
    return found


def files_below(path: Path) -> Iterator[Path]:
    """Yield the files below a folder in sorted order, or ``path`` itself if it is a file."""

    def stop(error: OSError) -> None:
        raise error

    with readable(path):
        if not path.is_dir():
            yield path
            return
        for folder, folders, files in os.walk(path, onerror=stop):
            folders.sort()
            yield from (Path(folder, name) for name in sorted(files))


def members(package: Path, wanted: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and contents of each file in a package that matches ``wanted``."""
    data = read_bytes(package, MAX_BYTES)
    with tarfile.open(fileobj=BytesIO(data_of(data) if package.suffix == ".deb" else data)) as tar:
        for member in tar:
            if wanted.search(member.name) and (file := tar.extractfile(member)) is not None:
                yield member.name, file.read(MAX_BYTES)


def data_of(package: bytes) -> bytes:
    """Return the data archive of a Debian package.

    Raises ValueError if there is none, and ConfigError if only dpkg can unpack it.
    """
    place = len(AR)
    while package.startswith(AR) and place + AR_HEADER <= len(package):
        header = package[place : place + AR_HEADER]
        start, size = place + AR_HEADER, int(header[48:58])
        if header.startswith(b"data.tar.zst"):
            raise ConfigError(
                "data.path", "the package uses zstd: unpack it with dpkg -x and give the folder."
            )
        if header.startswith(b"data.tar"):
            if start + size > len(package):
                raise ValueError("it ends early")
            return package[start : start + size]
        place = start + size + size % 2
    raise ValueError("not a complete Debian package")


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Convert errors while reading ``file`` to ConfigError."""
    try:
        yield
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise damaged(file, error) from error
    except OSError as error:
        place = error.filename or file
        raise ConfigError(
            "data.path", f"cannot read {place}: {error.strerror}; set data.path to other files."
        ) from error
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else damaged(file, error) from error


def damaged(file: Path, error: Exception) -> ConfigError:
    return ConfigError(
        "data.path", f"{file} is truncated or damaged ({error}): copy or download it again."
    )
