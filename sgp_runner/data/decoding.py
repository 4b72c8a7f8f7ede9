"""What the processes that decode images do. Importing this module imports torch and torchvision."""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing import parent_process
from threading import Thread

import torch
from PIL import Image
from torch import Tensor

from sgp_runner.data.shards import Extent
from sgp_runner.utils.errors import DataError
from sgp_runner.utils.torchvision import import_torchvision

import_torchvision()
from torchvision.transforms import v2  # noqa: E402  # after the import that needs help


def start_process() -> None:
    """In a new process: compute on one core, and end when the process that decodes for us has
    ended, however it did.
    """
    torch.set_num_threads(1)
    Thread(target=leave_with_parent, daemon=True).start()


def leave_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def decode(files: Sequence[str | Extent], size: int, seeds: Sequence[int] | None) -> Tensor:
    """uint8 [B, 3, size, size]: a random part of each image, perhaps mirrored, as its seed wants
    it; without seeds, its centre.

    Szegedy et al. 2015 for training; at evaluation the shorter side becomes ``size`` * 256 / 224
    (He et al. 2016). Raises DataError.
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
                with Image.open(file if isinstance(file, str) else file.open()) as image:
                    images[i] = (evaluate if seeds is None else train)(image.convert("RGB"))
            except (
                OSError,
                SyntaxError,
                ValueError,
            ) as error:  # what Pillow raises for damaged files
                raise DataError(
                    f"{file} cannot be read as an image ({error}); copy or download it again."
                ) from None
    return images
