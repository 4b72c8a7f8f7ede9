"""ImageNet (Deng et al. 2009; ILSVRC 2012), or any images in a folder per class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.class_folders import (
    ImageFolders,
    classes_in,
    dataset_of_images,
    labelled_images,
)
from sgp_runner.data.dataset import Dataset
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ImageNet(ImageFolders):
    """1,281,167 training and 50,000 validation images of 1000 classes, when complete.

    Training uses random crops and flips; evaluation uses the centre crop. Training and
    validation have the same classes.

    root: folder that contains train/<class>/ and val/<class>/; not part of a run's name
    """

    root: str = "data/imagenet"
    image_size: int = 224

    name: ClassVar[str] = "imagenet"
    source: ClassVar[str] = "russakovsky2014"
    train_size: ClassVar[int] = 1_281_167

    def load(self, dtype: torch.dtype) -> Dataset:
        """Load the images as bytes, so ``dtype`` has no effect."""
        classes = self.classes("train")
        if extra := sorted(set(self.classes("val")) - set(classes)):
            raise ConfigError(
                "data.root",
                f"{self.root}/val has the class {extra[0]}, which {self.root}/train does not have.",
            )
        root = Path(self.root)
        train = labelled_images(root / "train", classes, "data.root", allow_empty=False)
        valid = labelled_images(root / "val", classes, "data.root", allow_empty=True)
        return dataset_of_images(self, train, valid)

    def classes(self, part: str) -> list[str]:
        """Return the sorted names of the class folders."""
        names = classes_in(Path(self.root) / part)
        if not names:
            raise ConfigError(
                "data.root",
                f"{self.root} lacks ImageNet's images in {part}/<class>/: "
                "get ILSVRC 2012 from image-net.org and unpack it with "
                "scripts/prepare_imagenet.sh, or set data.root.",
            )
        return names
