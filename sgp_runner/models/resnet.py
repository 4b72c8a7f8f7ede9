"""Residual networks (He et al. 2016).

ResNet-8 and ResNet-20 are for small images (section 4.2); ResNet-18 and ResNet-50 are
torchvision's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.data.dataset import Dataset

if TYPE_CHECKING:
    from torch import nn


BLOCKS = {"resnet8": 1, "resnet20": 3}  # blocks per stage of the small networks


@dataclass(frozen=True)
class ResNet:
    """A residual network.

    The small networks have stages of 16, 32 and 64 channels and shortcuts without parameters
    (option A); ResNet-20 has 269,722 parameters on CIFAR-10. ResNet-18 and ResNet-50 are
    torchvision's and have 11,689,512 and 25,557,032 parameters on ImageNet; for images below 64
    pixels their stem is a 3x3 convolution with stride 1 without pooling.
    """

    name: Literal["resnet8", "resnet18", "resnet20", "resnet50"]

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    def build(self, dataset: Dataset) -> nn.Module:
        channels, height, width = dataset.input_shape
        if self.name in BLOCKS:
            from sgp_runner.models.residual import small_resnet

            return small_resnet(BLOCKS[self.name], channels, dataset.num_classes)
        from sgp_runner.models.vision import imagenet_resnet

        return imagenet_resnet(self.name, channels, min(height, width), dataset.num_classes)
