"""Images in a folder for each class."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from sgp_runner.data.dataset import Dataset, Pixels
from sgp_runner.data.label_settings import Classified
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.cores import share_of_cores
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.files import is_hidden

if TYPE_CHECKING:
    from torch import Tensor

Labelled: TypeAlias = "tuple[Sequence[str], Tensor]"  # images and their classes, int64 [N]

PIXELS = Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # of ImageNet's training set


@dataclass(frozen=True, kw_only=True)
class ImageFolders(Classified):
    """Images in a folder for each class.

    image_size: height and width of the model's input in pixels
    workers: number of decoding processes for each process of the run; null = its share of the
        machine's cores minus one, at least 4 and at most 16; 0 = images are decoded in the process
        of the run; results do not depend on this number
    """

    image_size: int
    workers: int | None = None

    name: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(1, "data", self, "image_size")
        check_least(0, "data", self, "workers")


def classes_in(folder: Path) -> list[str]:
    """Return the sorted names of the folders in ``folder``, except hidden ones."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in paths if path.is_dir() and not is_hidden(path.name))


def labelled_images(folder: Path, classes: Sequence[str], key: str, allow_empty: bool) -> Labelled:
    """Return the images in ``folder`` and the index of each image's class in ``classes``.

    Hidden files, and files in hidden folders, are left out.

    allow_empty: whether a class may have no images

    Raises ConfigError, for ``key``, if there are no images.
    """
    import torch

    from sgp_runner.utils.torchvision_import import import_torchvision

    import_torchvision("data")
    torchvision = importlib.import_module("torchvision.datasets.folder")
    numbers = {name: number for number, name in enumerate(classes)}

    def is_image(path: str) -> bool:
        return not is_hidden(path.removeprefix(str(folder))) and bool(
            torchvision.is_image_file(path)
        )

    try:
        files = torchvision.make_dataset(
            str(folder), numbers, is_valid_file=is_image, allow_empty=allow_empty
        )
    except FileNotFoundError as error:
        raise ConfigError(key, f"a class has no images: {error}.") from None
    if not files:
        raise ConfigError(key, f"the classes in {folder} have no images.")
    paths, labels = zip(*files, strict=True)
    return paths, torch.tensor(labels)


def dataset_of_images(data: ImageFolders, train: Labelled, valid: Labelled) -> Dataset:
    """Return a data set of byte images [3, image_size, image_size]."""
    from sgp_runner.data.images import Decoders, ImageFiles

    (files, labels), (valid_files, valid_labels) = train, valid
    share = min(max(share_of_cores() - 1, 4), 16)
    decoders = Decoders(share if data.workers is None else data.workers)
    return Dataset(
        name=data.name,
        task=Classification(data.label_smoothing),
        train=ImageFiles(files, labels, data.image_size, True, decoders),
        valid=ImageFiles(valid_files, valid_labels, data.image_size, False, decoders),
        input_shape=(3, data.image_size, data.image_size),
        num_classes=int(labels.max()) + 1,
        partition=partition_of(data.partition, data.alpha),
        pixels=PIXELS,
    )
