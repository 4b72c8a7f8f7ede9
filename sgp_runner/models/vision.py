"""torchvision's classifiers and the normalisation of their inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sgp_runner.data.dataset import Pixels
from sgp_runner.models.dropout import DrawsFromTorch
from sgp_runner.models.residual import init_classifier
from sgp_runner.utils.errors import ConfigError, nearest
from sgp_runner.utils.torchvision_import import import_torchvision

_SMALL = 64  # pixels; below it the ImageNet stem would shrink the image by 4 before the first block
#: Samples of a pass through bottleneck blocks that a CPU computes faster channels-last. PyTorch's
#: other kernels for so many samples are slow: 12 take longer than 16.
FEW_SAMPLES = range(4, 16)


class Normalise(nn.Module):
    """Conversion of byte images [B, C, H, W] to floats with mean 0 and deviation 1 per channel.

    Bytes are cheaper to transfer than floats.
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


def convolve_channels_last(module: nn.Module, when: Callable[[Tensor], bool]) -> bool:
    """Make all convolutions channels-last ``when`` the first one's output [B, C, H, W] is accepted.

    The others follow the format of their input, which a single-channel image does not determine.
    Returns whether there are any convolutions.
    """
    first = next((layer for layer in module.modules() if isinstance(layer, nn.Conv2d)), None)

    def convert(layer: nn.Module, inputs: object, output: Tensor) -> Tensor:
        return output.contiguous(memory_format=torch.channels_last) if when(output) else output

    if first is not None:
        first.register_forward_hook(convert)
    return first is not None


def images_last_on_cpu(layer: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
    """Convert a convolution's input [B, C, H, W] to channels-last on a CPU, as a forward pre-hook.

    Later layers follow. The copy has the strides of the format even for a single channel.
    """
    [images] = inputs
    last = torch.channels_last
    return images.clone(memory_format=last) if images.device.type == "cpu" else None


def has_few_samples(activations: Tensor) -> bool:
    return activations.device.type == "cpu" and len(activations) in FEW_SAMPLES


def imagenet_resnet(name: str, channels_in: int, pixels: int, num_classes: int) -> nn.Module:
    """Return torchvision's ``name`` with the initialisation of Goyal et al. (2017, section 5.1).

    It maps images [B, channels_in, H, W] to logits [B, num_classes]. Below 64 ``pixels`` the stem
    is a 3x3 convolution with stride 1 and no pooling.
    """
    import_torchvision("model")
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
    if name == "resnet50":  # the only one with bottleneck blocks
        convolve_channels_last(module, has_few_samples)
    return module


class Classifier(DrawsFromTorch):
    """A torchvision model from images [B, 1 or 3, H, W] to logits [B, num_classes]."""

    def __init__(self, model: nn.Module) -> None:
        DrawsFromTorch.__init__(self)
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.expand(-1, 3, -1, -1))
        return logits


def classifier(arch: str, shape: tuple[int, ...], num_classes: int) -> Classifier:
    """Return torchvision's classifier ``arch`` for images of ``shape`` (C, H, W), untrained.

    Raises ConfigError if torchvision has no such architecture or it cannot process these images.
    """
    import_torchvision("model")
    models = importlib.import_module("torchvision.models")
    names = models.list_models(module=models)
    if arch not in names:
        raise ConfigError(
            "model.arch", f"'{arch}' is not a torchvision classifier.{nearest(arch, names)}"
        )
    channels, height, width = shape
    options = options_of(arch, height, width)
    try:
        module = Classifier(models.get_model(arch, num_classes=num_classes, **options)).eval()
        with torch.no_grad():
            module(torch.zeros(1, *shape))
    except (AssertionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ConfigError(
            "model.arch",
            f"{arch} cannot read images of {channels} x {height} x {width} ({reason}): use data of "
            "another size, e.g. data=synthetic data.image_size=224, or another architecture.",
        ) from None
    return module.train()


def options_of(arch: str, height: int, width: int) -> dict[str, object]:
    """Return the options of an architecture: its image size, and no auxiliary classifiers."""
    if arch in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    if arch.startswith("vit_"):
        return {"image_size": height}
    return {"input_size": (height, width)} if arch == "maxvit_t" else {}
