"""Any torchvision image classifier, untrained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Torchvision:
    """A torchvision classifier with random weights from torchvision's initialisation.

    Single-channel images are repeated to three channels. Auxiliary classifiers are omitted. An
    architecture that cannot process images of the data's size raises an error.

    arch: as in torchvision.models.list_models, e.g. mobilenet_v3_small, vgg11_bn, vit_b_16
    """

    arch: str = "mobilenet_v3_small"

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "shapes"
    trains: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The architecture, which identifies the model in clusters and reports."""
        return self.arch

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.vision import classifier

        return classifier(self.arch, dataset.input_shape, dataset.num_classes)
