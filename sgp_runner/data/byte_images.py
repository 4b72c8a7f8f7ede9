"""Small labelled images, held in memory as bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sgp_runner.data.dataset import Batch, Dataset, Pixels, TensorSplit, held_out
from sgp_runner.data.sampler import Partition
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.seeding import seeds_of

if TYPE_CHECKING:
    from torch import Tensor

MARGIN = 4  # width in pixels of the black border that crops may include (He et al. 2016, 4.2)


@dataclass(frozen=True)
class Images(TensorSplit):
    """Labelled images in memory.

    augment: whether to shift each image by up to ``MARGIN`` pixels and mirror half of them
    """

    augment: bool = False

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        (images,), targets = TensorSplit.batch(self, indices)
        if self.augment:
            images = moved(images, seeds_of(seed, indices))
        return (images,), targets


def moved(images: Tensor, seeds: Tensor) -> Tensor:
    """Shift and mirror each image in ``images`` [B, C, H, W] at random by its seed (int64 [B]).

    Pixels uncovered by a shift are black.
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


def labelled(images: Tensor, classes: Tensor) -> Images:
    """Return a split of ``images`` (uint8 [N, C, H, W]) and ``classes`` (int64 [N])."""
    return Images((images,), classes, classes)


def image_data(
    name: str,
    train: Images,
    valid: Images,
    pixels: Pixels,
    *,
    num_classes: int,
    partition: Partition,
    label_smoothing: float,
    augment: bool,
    holdout: float,
) -> Dataset:
    """Return a data set of two splits for `held_out`; the training split is augmented."""
    dataset = Dataset(
        name=name,
        task=Classification(label_smoothing),
        train=train,
        valid=valid,
        input_shape=tuple(train.inputs[0].shape[1:]),
        num_classes=num_classes,
        partition=partition,
        pixels=pixels,
    )
    dataset = held_out(dataset, holdout)
    assert isinstance(dataset.train, Images)
    return replace(dataset, train=replace(dataset.train, augment=augment))
