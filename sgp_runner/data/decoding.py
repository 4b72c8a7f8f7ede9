"""The processes that decode images. Importing this module imports torch and torchvision."""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing import parent_process
from threading import Thread

import numpy
import torch
from PIL import Image
from torch import Tensor

from sgp_runner.utils.errors import DataError
from sgp_runner.utils.reading import MIB, open_regular
from sgp_runner.utils.torchvision_import import import_torchvision

import_torchvision("data")
from torchvision.transforms import v2  # noqa: E402  # after the workaround

# Pillow's errors for damaged files, and for files that would fill the memory.
DAMAGED = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
MAX_BYTES = 512 * MIB  # size limit of an image file


def start_process() -> None:
    """Initialise a decoding process: it uses one thread and ends with its parent process."""
    torch.set_num_threads(1)
    Thread(target=leave_with_parent, daemon=True).start()


def leave_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def as_rgb(image: Image.Image, file: str) -> Image.Image:
    """Return ``image`` with 8 bits per channel; 16-bit grey is scaled.

    Raises DataError for floats and 32-bit integers, whose white level is undefined.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        grey = numpy.rint(numpy.asarray(image) / 257)  # 65535 / 255
        image = Image.fromarray(grey.astype(numpy.uint8))
    if image.mode in ("F", "I"):
        kind = "floats" if image.mode == "F" else "signed or 32-bit integers"
        raise DataError(f"{file} has {kind}, whose white level is undefined: convert it to 8 bits.")
    return image.convert("RGB")


def decode(files: Sequence[str], size: int, seeds: Sequence[int] | None) -> Tensor:
    """Decode images to uint8 [B, 3, size, size].

    For training, crop and mirror each image at random by its seed (Szegedy et al. 2015). For
    evaluation (no seeds), scale the shorter side to ``size`` * 256 / 224 and crop the centre (He et
    al. 2016). Raises DataError.
    """
    train = v2.Compose(
        [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )
    evaluate = v2.Compose(
        [v2.Resize(round(size * 256 / 224), antialias=True), v2.CenterCrop(size), v2.PILToTensor()]
    )
    images = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
    with torch.random.fork_rng(devices=[]):  # the transforms draw from torch's global generator
        for i, file in enumerate(files):
            if seeds is not None:
                torch.default_generator.manual_seed(seeds[i])
            try:
                with open_regular(file, MAX_BYTES) as content, Image.open(content) as image:
                    images[i] = (evaluate if seeds is None else train)(as_rgb(image, file))
            except DAMAGED as error:
                raise DataError(
                    f"{file} cannot be read as an image ({error}); copy or download it again."
                ) from None
    return images
