"""A small network of two 5x5 convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset, check_shares
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Conv:
    """Two 5x5 convolutions, each followed by 2x2 max pooling, and two linear layers.

    There is no BatchNorm. With the defaults it has 215,370 parameters on Fashion-MNIST.

    channels: channels of the first convolution; the second has twice as many
    hidden: width of the hidden linear layer
    dropout: probability of zeroing a hidden activation
    """

    channels: int = 16
    hidden: int = 128
    dropout: float = 0.0

    name: ClassVar[str] = "conv"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least(1, "model", self, "channels", "hidden")
        check_shares("model", self, dropout=0.1)

    def build(self, dataset: Dataset) -> nn.Module:
        from torch import nn

        from sgp_runner.models.dropout import SeededDropout
        from sgp_runner.models.vision import images_last_on_cpu

        channels, height, width = dataset.input_shape
        wide = 2 * self.channels
        first = nn.Conv2d(channels, self.channels, 5, padding=2)
        first.register_forward_pre_hook(images_last_on_cpu)
        return nn.Sequential(
            first,
            nn.MaxPool2d(2),  # before ReLU: the same values and gradients in less time
            nn.ReLU(),
            nn.Conv2d(self.channels, wide, 5, padding=2),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(wide * (height // 4) * (width // 4), self.hidden),
            nn.ReLU(),
            SeededDropout(self.dropout, layer=0),
            nn.Linear(self.hidden, dataset.num_classes),
        )
