"""ResNet-20 (He et al. 2016, section 4.2): 269,722 parameters on CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import nn

    from sgp_runner.data.dataset import Dataset


@dataclass(frozen=True)
class ResNet20:
    """Stages of 16, 32 and 64 channels with 3 blocks each; shortcuts without parameters (option A)."""

    name: ClassVar[str] = "resnet20"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.residual import small_resnet

        return small_resnet(3, dataset.input_shape[0], dataset.num_classes)
