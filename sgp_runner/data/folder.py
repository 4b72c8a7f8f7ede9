"""The user's own images, in a folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.class_folders import (
    ImageFolders,
    Labelled,
    classes_in,
    dataset_of_images,
    labelled_images,
)
from sgp_runner.data.dataset import Dataset, check_shares
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.seeding import generator

if TYPE_CHECKING:
    import torch

VALIDATION = ("val", "valid", "test")  # names of the folder next to ``train``


@dataclass(frozen=True)
class Folder(ImageFolders):
    """Images in path/<class>/, or in path/train/<class>/ and path/val/<class>/.

    Training uses random crops and flips; evaluation uses the centre crop. Hidden files and folders
    are left out, and 16-bit grey images are scaled to 8 bits.

    path: folder that contains the classes, or train/ and val/ (or valid/ or test/)
    valid_share: share of the images of each class, drawn at random, that is used for validation;
        ignored if there is a train/
    """

    path: str = ""
    valid_share: float = 0.1
    image_size: int = 64

    name: ClassVar[str] = "folder"
    train_size: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares("data", self, valid_share=0.1)
        if not self.path:
            raise ConfigError("data.path", "set it to a folder with one subfolder per class.")

    def load(self, dtype: torch.dtype) -> Dataset:
        """Load the images as bytes, so ``dtype`` has no effect."""
        root = Path(self.path)
        if not root.is_dir():
            raise ConfigError("data.path", f"there is no folder '{root}'.")
        if not (root / "train").is_dir():
            return dataset_of_images(self, *self.divided(root))
        validation = [root / name for name in VALIDATION if (root / name).is_dir()]
        if not validation:
            raise ConfigError("data.path", f"{root} has train/ but no {'/, '.join(VALIDATION)}/.")
        classes = self.classes(root / "train")
        if extra := sorted(set(classes_in(validation[0])) - set(classes)):
            raise ConfigError(
                "data.path", f"{validation[0]} has the class {extra[0]}, unlike train/."
            )
        train = labelled_images(root / "train", classes, "data.path", allow_empty=False)
        valid = labelled_images(validation[0], classes, "data.path", allow_empty=True)
        return dataset_of_images(self, train, valid)

    def classes(self, folder: Path) -> list[str]:
        if names := classes_in(folder):
            return names
        raise ConfigError("data.path", f"{folder} has no subfolder of images per class.")

    def divided(self, root: Path) -> tuple[Labelled, Labelled]:
        """Return the training and validation images of a folder, divided deterministically."""
        import torch

        classes = self.classes(root)
        files, labels = labelled_images(root, classes, "data.path", allow_empty=False)
        random, held = generator(1), torch.zeros(len(labels), dtype=torch.bool)
        for label in range(len(classes)):
            members = (labels == label).nonzero().flatten()
            share = round(self.valid_share * len(members))
            held[members[torch.randperm(len(members), generator=random)[:share]]] = True
        if not held.any() or bool(held.all()):
            raise ConfigError(
                "data.valid_share",
                f"{self.valid_share} of {len(held)} images leaves none for training or validation.",
            )
        train, valid = ~held, held
        return (selected(files, train), labels[train]), (selected(files, valid), labels[valid])


def selected(files: Sequence[str], which: torch.Tensor) -> list[str]:
    return [files[i] for i in which.nonzero().flatten().tolist()]
