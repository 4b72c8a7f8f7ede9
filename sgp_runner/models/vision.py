"""torchvision's ResNets, and the normalisation of their images."""

from __future__ import annotations

import importlib

import torch
from torch import Tensor, nn

from sgp_runner.data.dataset import Pixels
from sgp_runner.models.residual import init_classifier
from sgp_runner.utils.torchvision import import_torchvision

_SMALL = 64  # pixels; below it the ImageNet stem would shrink the image by 4 before the first block


class Normalise(nn.Module):
    """Images of bytes [B, C, H, W] to floats, each channel with mean 0 and deviation 1.

    A byte is cheaper to move than a float.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, pixels: Pixels) -> None:
        nn.Module.__init__(self)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (pixels.mean, pixels.std))
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", -mean / std)

    def forward(self, images: Tensor) -> Tensor:
        return images.to(self.scale.dtype) * self.scale + self.shift


def imagenet_resnet(name: str, channels_in: int, pixels: int, num_classes: int) -> nn.Module:
    """torchvision's ``name`` with the initialisation of Goyal et al. (2017, section 5.1).

    Images [B, channels_in, H, W] to logits [B, num_classes]. Below 64 ``pixels`` the stem is a 3x3
    convolution with stride 1 and no pooling.
    """
    import_torchvision()
    resnets = importlib.import_module("torchvision.models")
    module: nn.Module = getattr(resnets, name)(
        weights=None, num_classes=num_classes, zero_init_residual=True
    )
    small = pixels < _SMALL
    if small or channels_in != 3:
        size, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        stem = nn.Conv2d(channels_in, 64, size, stride, padding, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        module.conv1 = stem
    if small:
        module.maxpool = nn.Identity()
    assert isinstance(module.fc, nn.Linear)
    init_classifier(module.fc)
    return module
