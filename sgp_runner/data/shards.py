"""Images in shards: tar archives in webdataset's layout.

A sample consists of two members: the image ``<key>.jpg`` and its class ``<key>.cls``. Shards are a
thousand large files instead of a million small files. Samples are read by position, not as a
stream, so a step's samples are the same function of seed, worker and step as for files in folders.
Reading needs only the standard library, not webdataset.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4
from zipfile import BadZipFile, ZipFile

import torch
from numpy import ndarray
from torch import Tensor

from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.files import is_hidden
from sgp_runner.utils.messages import logger
from sgp_runner.utils.reading import MIB, open_regular

# webdataset's rule: a key, the first dot of the file's name, an extension.
MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)")
# The extensions of torchvision's folders.
IMAGES = {"bmp", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp"}
MAX_DIGITS = 20  # of a class
MAX_CLASSES = 2**31
MAX_INDEX = 4096 * MIB
AGAIN = "copy it again, or remove it and make it with scripts/make_shards.py"


class Extent(NamedTuple):
    """The position of an image in a shard."""

    shard: str
    start: int  # bytes
    size: int  # bytes

    def open(self) -> BytesIO:
        with open_regular(self.shard) as file:
            file.seek(self.start)
            return BytesIO(file.read(self.size))

    def __str__(self) -> str:
        return f"{self.shard}, at byte {self.start},"


@dataclass(frozen=True)
class Shards:
    """Samples, ordered by the name of the shard and then by the position in it."""

    paths: Sequence[str]
    samples: Tensor  # int64 [N, 4]: number of the shard, first byte, bytes, class

    @property
    def labels(self) -> Tensor:
        return self.samples[:, 3]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Extent:
        shard, start, size, _ = self.samples[i].tolist()
        return Extent(self.paths[shard], start, size)


def load_shards(folder: Path) -> tuple[Shards, Shards]:
    """Load ``folder``/train-*.tar and ``folder``/val-*.tar.

    Raises ConfigError if they are missing or damaged.
    """
    train, valid = find(folder, "train"), find(folder, "val")
    classes = sorted(set(train.labels.tolist()))
    if missing := sorted(set(range(len(classes))) - set(classes)):
        raise ConfigError(
            "data.shards",
            f"the train shards in {folder} have no sample of class {missing[0]}, "
            f"but of class {classes[-1]}; classes count from 0.",
        )
    if (largest := int(valid.labels.max())) > classes[-1]:
        raise ConfigError(
            "data.shards",
            f"the val shards in {folder} have the class {largest}, "
            f"the train shards only 0 to {classes[-1]}.",
        )
    return train, valid


def find(folder: Path, part: str) -> Shards:
    """Find the samples of ``part``, which is train or val.

    The positions of the samples are cached in ``folder``/``part``-index.npz. The cache is valid for
    shards with the same names and sizes.
    """
    import numpy

    paths = sorted(folder.glob(f"{part}-*.tar"))
    if not paths:
        raise ConfigError(
            "data.shards",
            f"there are no {part}-*.tar in {folder}; make shards of ImageNet's folders with "
            "scripts/make_shards.py, or read the folders with data.shards=null.",
        )
    check_numbers(paths, part)
    names = numpy.array([path.name for path in paths])
    sizes = numpy.array([size_of(path) for path in paths])
    index = folder / f"{part}-index.npz"
    samples = cached(index, names, sizes)
    if samples is None:
        with ThreadPoolExecutor() as threads:  # dominated by waiting for the file system
            positions = enumerate(threads.map(samples_of, paths))
            samples = numpy.concatenate(
                [numpy.array([(shard, *sample) for sample in rows]) for shard, rows in positions]
            )
        keep(index, names, sizes, samples)
    return Shards(list(map(str, paths)), torch.from_numpy(samples))


def check_numbers(paths: Sequence[Path], part: str) -> None:
    """Raise ConfigError if the numbers of the shards have a gap."""
    numbers = {
        int(match[1]): path
        for path in paths
        if (match := re.fullmatch(rf"{part}-(\d+)", path.stem))
    }
    for number, path in sorted(numbers.items()):
        if number + 1 not in numbers and number != max(numbers):
            raise ConfigError(
                "data.shards",
                f"the shard after {path} is missing; "
                "copy it, or make it with scripts/make_shards.py.",
            )


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None


def samples_of(path: Path) -> list[tuple[int, int, int]]:
    """Return the image's first byte and size, and the class, of each sample in a shard."""
    samples = []
    try:
        with open_regular(path) as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
            for key, group in groupby(members(archive), itemgetter(0)):
                files = [(extension, member) for _, extension, member in group]
                images = [member for extension, member in files if extension in IMAGES]
                classes = [
                    archive.extractfile(member) for extension, member in files if extension == "cls"
                ]
                if not images and not classes:
                    continue
                try:
                    (image,), (file,) = images, classes
                    number = int(file.read(MAX_DIGITS)) if file else -1
                    if not 0 <= number < MAX_CLASSES:
                        raise ValueError
                except ValueError:
                    is_not = "is not one image (.jpg) and one class (.cls, a number from 0)"
                    raise ConfigError(
                        "data.shards", f"the sample {key} of {path} {is_not}; {AGAIN}."
                    ) from None
                samples.append((image.offset_data, image.size, number))
    except (OSError, tarfile.TarError) as error:
        raise unreadable(path, error) from None
    if not samples:
        raise ConfigError(
            "data.shards", f"{path} has no samples, <key>.jpg and <key>.cls; {AGAIN}."
        )
    return samples


def members(archive: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Yield the key, extension and tar member of each file; files of a sample are adjacent.

    Hidden files, and files in hidden folders, are left out.

    Raises ReadError if the archive is truncated.
    """
    for member in archive:
        match = MEMBER.fullmatch(member.name)
        if match and member.isreg() and not is_hidden(member.name):
            yield match[1], match[2].lower(), member
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    # tarfile treats a damaged header as the end of the archive.
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("no end of the archive where one should be")


def unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        "data.shards", f"{path} is no tar archive, or not all of one ({error}); {AGAIN}."
    )


def cached(index: Path, names: ndarray, sizes: ndarray) -> ndarray | None:
    """Return the cached positions if they are valid for these names and sizes, else None."""
    import numpy

    try:
        with open_regular(index, MAX_INDEX) as file:
            if sum(member.file_size for member in ZipFile(file).infolist()) > MAX_INDEX:
                return None
            file.seek(0)
            with numpy.load(file) as cache:
                same = numpy.array_equal(cache["names"], names) and numpy.array_equal(
                    cache["sizes"], sizes
                )
                samples: ndarray = cache["visible"]  # an older index, with hidden files, lacks it
                return samples if same and fit(samples, sizes) else None
    except (OSError, EOFError, KeyError, ValueError, BadZipFile):
        return None


def fit(samples: ndarray, sizes: ndarray) -> bool:
    """Return whether all samples have a class and lie within their shards (``sizes`` in bytes)."""
    if samples.dtype != "int64" or samples.ndim != 2 or samples.shape[1] != 4 or not len(samples):
        return False
    shard, start, size, number = samples.T
    if min(map(int, (shard.min(), start.min(), size.min(), number.min()))) < 0:
        return False
    return bool((shard < len(sizes)).all() and (start <= sizes[shard] - size).all())


def keep(index: Path, names: ndarray, sizes: ndarray, samples: ndarray) -> None:
    """Store the positions in the cache; several processes may do this at the same time."""
    import numpy

    part = index.with_name(f".{index.name}.{uuid4().hex}.part")
    try:
        with part.open("wb") as file:
            numpy.savez_compressed(file, names=names, sizes=sizes, visible=samples)
        part.replace(index)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        logger.warning(
            f"{index} cannot be written ({error}), so every run searches the shards again."
        )
