"""Small labelled images, held in memory as bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from sgp_runner.data.dataset import (
    Batch,
    Dataset,
    Pixels,
    TensorSplit,
    check_shares,
    held_out,
)
from sgp_runner.data.sampler import LabelPartition, partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.seeding import seeds_of

if TYPE_CHECKING:
    from torch import Tensor

    Labelled: TypeAlias = tuple[Tensor, Tensor]  # images, uint8 [N, C, H, W]; classes, int64 [N]

MARGIN = 4  # width in pixels of the black border that crops may include (He et al. 2016, 4.2)


@dataclass(frozen=True)
class ByteImages(ABC):
    """The settings that these data sets share; their classes describe them."""

    name: str
    root: str = "data"
    augment: bool = True
    partition: LabelPartition = "iid"
    alpha: float = 0.1
    label_smoothing: float = 0.0
    holdout: float = 0.0

    task: ClassVar[str] = "classification"
    stand_in: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_shares("data", self, label_smoothing=0.1, holdout=0.2)
        partition_of(self.partition, self.alpha)

    @property
    @abstractmethod
    def pixels(self) -> Pixels: ...

    @property
    @abstractmethod
    def num_classes(self) -> int: ...

    def dataset(self, train: Labelled, valid: Labelled) -> Dataset:
        dataset = Dataset(
            name=self.name,
            task=Classification(self.label_smoothing),
            train=Images((train[0],), train[1], train[1], self.augment),
            valid=Images((valid[0],), valid[1], valid[1], False),
            input_shape=tuple(train[0].shape[1:]),
            num_classes=self.num_classes,
            partition=partition_of(self.partition, self.alpha),
            pixels=self.pixels,
        )
        dataset = held_out(dataset, self.holdout)
        return replace(dataset, valid=replace(dataset.valid, augment=False))  # type: ignore[type-var]


@dataclass(frozen=True)
class Images(TensorSplit):
    """Labelled images in memory.

    augment: whether to shift each image by up to ``MARGIN`` pixels and mirror half of them
    """

    augment: bool

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        (images,), targets = TensorSplit.batch(self, indices)
        if self.augment:
            images = moved(images, seeds_of(seed, indices))
        return (images,), targets


def moved(images: Tensor, seeds: Tensor) -> Tensor:
    """Shift and mirror ``images`` [B, C, H, W] at random, each by its own seed (int64 [B]).

    Pixels that a shift uncovers are black.
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
