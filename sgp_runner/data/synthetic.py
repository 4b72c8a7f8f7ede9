"""ImageNet-shaped noise, generated on demand, for measurements of throughput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.data.dataset import Batch, Dataset, Split
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.errors import check_least
from sgp_runner.utils.seeding import generator, seed_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SEED = 1_281_167
_OFFSETS = 65_521  # a prime, so that an affine map of the index visits all of them


@dataclass(frozen=True)
class Synthetic:
    """Images of Gaussian noise with random labels.

    Sample ``i`` is always the same; nothing is stored per sample.

    image_size: height and width in pixels, 3 channels
    num_classes: number of equally likely classes
    size: training images; the default is the size of ImageNet
    valid_size: validation images
    partition: iid = reshuffled among all nodes every epoch; dirichlet = fixed, unequal shards by
        label; dirichlet_equal = the same with shards of equal size
    alpha: concentration of the Dirichlet partition; smaller = fewer labels per node
    """

    image_size: int = 224
    num_classes: int = 1000
    size: int = 1_281_167
    valid_size: int = 512
    partition: Literal["iid", "dirichlet", "dirichlet_equal"] = "iid"
    alpha: float = 0.1

    name: ClassVar[str] = "synthetic"
    task: ClassVar[str] = "classification"
    stand_in: ClassVar[bool] = True

    @property
    def train_size(self) -> int:
        return self.size

    def __post_init__(self) -> None:
        partition_of(self.partition, self.alpha)
        check_least(1, "data", self, "image_size", "num_classes", "size", "valid_size")

    def load(self, dtype: torch.dtype) -> Dataset:
        import torch

        shape = (3, self.image_size, self.image_size)
        noise = torch.randn(
            shape[0] * shape[1] * shape[2] + _OFFSETS, generator=generator(_SEED)
        ).to(dtype)
        labels = torch.randint(
            self.num_classes, (self.size + self.valid_size,), generator=generator(_SEED, 1)
        )
        return Dataset(
            name=self.name,
            task=Classification(),
            train=NoiseSplit(noise, labels[: self.size], shape, first=0),
            valid=NoiseSplit(noise, labels[self.size :], shape, first=self.size),
            input_shape=shape,
            num_classes=self.num_classes,
            partition=partition_of(self.partition, self.alpha),
        )


@dataclass(frozen=True)
class NoiseSplit(Split):
    """Sample ``i`` is a window of one long noise vector, so a batch costs one copy."""

    noise: Tensor  #: [C*H*W + number of offsets]
    labels: Tensor  #: int64 [N]
    shape: tuple[int, int, int]
    first: int  #: index of sample 0 in the numbering that both splits share

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        channels, height, width = self.shape
        windows = self.noise.unfold(0, channels * height * width, 1)
        offsets = (indices + self.first) * (seed_of(_SEED) % _OFFSETS) % _OFFSETS
        return (windows[offsets].view(-1, *self.shape),), self.labels[indices]
