"""Any image classifier of torchvision, untrained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Torchvision:
    """A classifier of torchvision with random weights and torchvision's initialisation.

    Images of one channel are repeated to three. Auxiliary classifiers are left out. An
    architecture that cannot read images of the data's size is refused.

    arch: as in torchvision.models.list_models, e.g. mobilenet_v3_small, vgg11_bn, vit_b_16
    """

    arch: str = "mobilenet_v3_small"

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "shapes"
    trains: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The architecture, by which clusters and reports know models."""
        return self.arch

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.vision import classifier

        return classifier(self.arch, dataset.input_shape, dataset.num_classes)
