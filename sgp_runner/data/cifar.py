"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 training and 10,000 validation images [3, 32, 32], held in memory as bytes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.data.dataset import Batch, Dataset, Pixels, check_label_smoothing
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.errors import ConfigError
from sgp_runner.seeding import seeds_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MARGIN = 4  # black pixels around an image that a crop may show (He et al. 2016, section 4.2)
PIXELS = Pixels(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))  # of CIFAR-10's training set
PIXELS_100 = Pixels(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762))


@dataclass(frozen=True)
class Cifar10:
    """Ten classes.

    root: with cifar-10-batches-py/; may move: it is no part of a run's name
    augment: train on random crops and mirror images
    partition: iid = reshuffled among all nodes every epoch; dirichlet = fixed, unequal shards by class
    alpha: concentration of the Dirichlet partition; smaller = fewer classes per node
    label_smoothing: share of the target's probability that is spread over all classes
    """

    root: str = "data"
    augment: bool = True
    partition: Literal["iid", "dirichlet"] = "iid"
    alpha: float = 0.1
    label_smoothing: float = 0.0

    name: ClassVar[str] = "cifar10"
    task: ClassVar[str] = "classification"
    stand_in: ClassVar[bool] = False
    train_size: ClassVar[int] = 50_000

    def __post_init__(self) -> None:
        check_label_smoothing(self.label_smoothing)
        partition_of(self)

    def load(self, dtype: torch.dtype) -> Dataset:
        """``dtype`` has no effect: images are bytes."""
        return load(self, "CIFAR10", "cifar-10", PIXELS, 10)


@dataclass(frozen=True)
class Cifar100:
    """A hundred classes.

    root: with cifar-100-python/; may move: it is no part of a run's name
    augment: train on random crops and mirror images
    partition: iid = reshuffled among all nodes every epoch; dirichlet = fixed, unequal shards by class
    alpha: concentration of the Dirichlet partition; smaller = fewer classes per node
    label_smoothing: share of the target's probability that is spread over all classes
    """

    root: str = "data"
    augment: bool = True
    partition: Literal["iid", "dirichlet"] = "iid"
    alpha: float = 0.1
    label_smoothing: float = 0.0

    name: ClassVar[str] = "cifar100"
    task: ClassVar[str] = "classification"
    stand_in: ClassVar[bool] = False
    train_size: ClassVar[int] = 50_000

    def __post_init__(self) -> None:
        check_label_smoothing(self.label_smoothing)
        partition_of(self)

    def load(self, dtype: torch.dtype) -> Dataset:
        """``dtype`` has no effect: images are bytes."""
        return load(self, "CIFAR100", "cifar-100", PIXELS_100, 100)


def load(config: Cifar10 | Cifar100, kind: str, archive: str, pixels: Pixels, num_classes: int) -> Dataset:
    """torchvision's data set ``kind``, which checks its files against their published checksums."""
    import torch

    from sgp_runner.models.vision import import_torchvision

    import_torchvision()
    read = getattr(importlib.import_module("torchvision.datasets"), kind)

    def split(train: bool) -> Images:
        try:
            data = read(config.root, train=train)
        except RuntimeError:  # missing, or with other checksums
            get = f"curl -O https://www.cs.toronto.edu/~kriz/{archive}-python.tar.gz && tar -xzf {archive}-python.tar.gz -C {config.root}"
            where = f"{config.root}/{read.base_folder}"
            raise ConfigError("data.root", f"{where} is missing, or not all of {config.name}; get it with: {get}") from None
        return Images(torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(data.targets), train and config.augment)

    return Dataset(
        name=config.name,
        task=Classification(config.label_smoothing),
        train=split(train=True),
        valid=split(train=False),
        input_shape=(3, 32, 32),
        num_classes=num_classes,
        partition=partition_of(config),
        pixels=pixels,
    )


@dataclass(frozen=True)
class Images:
    """Labelled images in memory. ``augment``: each is moved by up to ``MARGIN`` pixels and mirrored half of the time."""

    images: Tensor  #: uint8 [N, C, H, W]
    labels: Tensor  #: int64 [N]
    augment: bool

    ahead: ClassVar[int] = 0

    def __len__(self) -> int:
        return len(self.labels)

    def prepare(self, indices: Tensor, seed: int = 0) -> None:
        """Nothing to do."""

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        images = self.images[indices]
        return (moved(images, seeds_of(seed, indices)) if self.augment else images,), self.labels[indices]

    def close(self) -> None:
        """Nothing is open."""


def moved(images: Tensor, seeds: Tensor) -> Tensor:
    """``images`` [B, C, H, W], moved and mirrored as their ``seeds`` (int64 [B]) want it; black comes in from outside."""
    import torch
    from torch.nn.functional import pad

    height, width = images.shape[2:]
    down, right = (((seeds >> shift) & 0xFFFF) % (2 * MARGIN + 1) for shift in (0, 16))
    columns = torch.arange(width)
    columns = torch.where(((seeds >> 32) & 1 == 1)[:, None], columns.flip(0), columns) + right[:, None]
    rows = torch.arange(height) + down[:, None]
    every = torch.arange(len(images))[:, None, None]
    wide = pad(images, [MARGIN] * 4).permute(0, 2, 3, 1)
    return wide[every, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
