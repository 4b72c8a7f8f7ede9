"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), held in memory as bytes.

There are 50,000 training and 10,000 validation images [3, 32, 32].
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.data.dataset import Batch, Dataset, Pixels, Split, check_label_smoothing
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.seeding import seeds_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MARGIN = 4  # black pixels around an image that a crop may show (He et al. 2016, section 4.2)
PIXELS = {
    "cifar10": Pixels(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "cifar100": Pixels(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
}


@dataclass(frozen=True)
class Cifar:
    """CIFAR-10 or CIFAR-100, of ten or a hundred classes.

    root: folder of cifar-10-batches-py/ or cifar-100-python/; not part of a run's name
    augment: train on random crops and mirror images
    partition: iid = reshuffled among all nodes every epoch; dirichlet = fixed, unequal shards by
        class
    alpha: concentration of the Dirichlet partition; smaller = fewer classes per node
    label_smoothing: share of the target's probability that is spread over all classes
    """

    name: Literal["cifar10", "cifar100"]
    root: str = "data"
    augment: bool = True
    partition: Literal["iid", "dirichlet"] = "iid"
    alpha: float = 0.1
    label_smoothing: float = 0.0

    task: ClassVar[str] = "classification"
    stand_in: ClassVar[bool] = False
    train_size: ClassVar[int] = 50_000

    def __post_init__(self) -> None:
        check_label_smoothing(self.label_smoothing)
        partition_of(self)

    def load(self, dtype: torch.dtype) -> Dataset:
        """Load the images as bytes, so ``dtype`` has no effect.

        torchvision checks its files against their published checksums.
        """
        return Dataset(
            name=self.name,
            task=Classification(self.label_smoothing),
            train=self.split(train=True),
            valid=self.split(train=False),
            input_shape=(3, 32, 32),
            num_classes=int(self.name.removeprefix("cifar")),
            partition=partition_of(self),
            pixels=PIXELS[self.name],
        )

    def split(self, train: bool) -> Images:
        import torch

        from sgp_runner.utils.torchvision import import_torchvision

        import_torchvision()
        read = getattr(importlib.import_module("torchvision.datasets"), self.name.upper())
        try:
            data = read(self.root, train=train)
        except RuntimeError:  # missing, or wrong checksums
            archive = self.name.replace("cifar", "cifar-")
            archive = f"{archive}-python.tar.gz"
            url = f"https://www.cs.toronto.edu/~kriz/{archive}"
            get = f"curl -O {url} && tar -xzf {archive} -C {self.root}"
            where = f"{self.root}/{read.base_folder}"
            raise ConfigError(
                "data.root", f"{where} is missing, or not all of {self.name}; get it with: {get}"
            ) from None
        return Images(
            torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous(),
            torch.tensor(data.targets),
            train and self.augment,
        )


@dataclass(frozen=True)
class Images(Split):
    """Labelled images in memory.

    augment: shift each image by up to ``MARGIN`` pixels and mirror it half of the time.
    """

    images: Tensor  #: uint8 [N, C, H, W]
    labels: Tensor  #: int64 [N]
    augment: bool

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        images = self.images[indices]
        if self.augment:
            images = moved(images, seeds_of(seed, indices))
        return (images,), self.labels[indices]


def moved(images: Tensor, seeds: Tensor) -> Tensor:
    """``images`` [B, C, H, W], shifted and mirrored by their ``seeds`` (int64 [B]).

    Pixels from outside the image are black.
    """
    import torch
    from torch.nn.functional import pad

    height, width = images.shape[2:]
    down, right = (((seeds >> shift) & 0xFFFF) % (2 * MARGIN + 1) for shift in (0, 16))
    columns = torch.arange(width)
    columns = (
        torch.where(((seeds >> 32) & 1 == 1)[:, None], columns.flip(0), columns) + right[:, None]
    )
    rows = torch.arange(height) + down[:, None]
    every = torch.arange(len(images))[:, None, None]
    wide = pad(images, [MARGIN] * 4).permute(0, 2, 3, 1)
    return wide[every, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
