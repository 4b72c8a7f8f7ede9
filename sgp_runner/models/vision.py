"""torchvision: its import, which needs help on some machines, and the ResNets taken from it."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch
from torch import Tensor, nn

from sgp_runner.data.dataset import Pixels
from sgp_runner.models.residual import init_classifier

#: Schemas declared by ``import_torchvision``; they are undone when this object is collected, hence global.
_declared: list[torch.library.Library] = []

_SMALL = 64  # pixels; below it the ImageNet stem would shrink the image by 4 before the first block


def import_torchvision() -> ModuleType:
    """``import torchvision``, also where its CUDA wheel lies beside a CPU-only torch.

    The default wheel for Linux is built against CUDA. Next to a CPU-only torch its compiled operators cannot be loaded,
    and the import then stops at "operator torchvision::nms does not exist", because Python code registers shape
    functions for operators that nobody declared. Declaring the two operators is enough for models and transforms;
    ``nms`` itself stays unusable. Nothing is done when the plain import works or when it fails for another reason.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or torch.version.cuda is not None:
            raise
    for name in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
        del sys.modules[name]  # left half imported by the failure
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    _declared.append(library)
    return importlib.import_module("torchvision")


class Normalise(nn.Module):
    """Images of bytes [B, C, H, W] to floating point, each channel with mean 0 and deviation 1. A byte is cheaper to move than a float."""

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

    Images [B, channels_in, H, W] to logits [B, num_classes]. Below 64 ``pixels`` the stem is a 3x3 convolution with
    stride 1 and no pooling.
    """
    import_torchvision()
    resnets = importlib.import_module("torchvision.models")
    module: nn.Module = getattr(resnets, name)(weights=None, num_classes=num_classes, zero_init_residual=True)
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
