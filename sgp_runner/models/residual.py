"""The residual network for small images of He et al. (2016, section 4.2).

It has three stages of 16, 32 and 64 channels.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A of the paper).

    The shortcut subsamples and adds zero channels.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        nn.Module.__init__(self)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.new_channels = channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        shortcut = F.pad(
            x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels)
        )
        return F.relu(h + shortcut)


def small_resnet(blocks_per_stage: int, channels_in: int, num_classes: int) -> nn.Module:
    """Return a residual network of ``6 * blocks_per_stage + 2`` layers.

    It maps images [B, channels_in, H, W] of any size to logits [B, num_classes].
    """
    widths = [16] * blocks_per_stage + [32] * blocks_per_stage + [64] * blocks_per_stage
    blocks = [
        ResidualBlock(a, b, stride=1 if a == b else 2) for a, b in itertools.pairwise([16, *widths])
    ]
    module = nn.Sequential(
        nn.Conv2d(channels_in, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        # A block starts as its shortcut (Goyal et al. 2017, section 5.1), unless it adds channels:
        # those would be zeros for ever, because the ReLU has no gradient at zero.
        if isinstance(layer, ResidualBlock) and not layer.new_channels:
            nn.init.zeros_(layer.bn2.weight)
    last = module[-1]
    assert isinstance(last, nn.Linear)
    init_classifier(last)
    return module


def init_classifier(linear: nn.Linear) -> None:
    """Draw weights ~ N(0, 0.01) and set the bias to zero (Goyal et al. 2017, section 5.1)."""
    with torch.no_grad():
        linear.weight.normal_(0, 0.01)
        linear.bias.zero_()
