"""torchvision's ResNet-18 (He et al. 2016): 11,689,512 parameters on ImageNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import nn

    from sgp_runner.data.dataset import Dataset


@dataclass(frozen=True)
class ResNet18:
    """Below 64 pixels the stem is a 3x3 convolution with stride 1 and no pooling."""

    name: ClassVar[str] = "resnet18"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.vision import imagenet_resnet

        channels, height, width = dataset.input_shape
        return imagenet_resnet("resnet18", channels, min(height, width), dataset.num_classes)
