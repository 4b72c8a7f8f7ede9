"""ImageNet (Deng et al. 2009; ILSVRC 2012), or any images in a folder per class."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from sgp_runner.data.dataset import Dataset, Pixels, check_shares
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.cores import share_of_cores
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sgp_runner.data.shards import Shards

Labelled: TypeAlias = "tuple[Sequence[str] | Shards, Tensor]"  # images and their classes, int64 [N]

PIXELS = Pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # of ImageNet's training set


@dataclass(frozen=True)
class ImageNet:
    """1,281,167 training and 50,000 validation images of 1000 classes, when complete.

    Training uses random crops and mirror images; evaluation uses the centre. Training and
    validation have the same classes.

    root: folder that contains train/<class>/ and val/<class>/; not part of a run's name
    shards: folder of train-*.tar and val-*.tar, made by scripts/make_shards.py, which are read
        instead of root; null = read root
    image_size: height and width of the model's input in pixels
    workers: number of decoding processes for each process of the run; null = one fewer than its
        share of the machine's cores, from 4 to 16; 0 = the process of the run decodes images
        itself; results do not depend on this number
    partition: iid = reshuffled among all nodes every epoch; dirichlet = fixed, unequal shards by
        class; dirichlet_equal = the same with shards of equal size
    alpha: concentration of the Dirichlet partition; smaller = fewer classes per node
    label_smoothing: share of the target's probability that is spread over all classes
    """

    root: str = "data/imagenet"
    shards: str | None = None
    image_size: int = 224
    workers: int | None = None
    partition: Literal["iid", "dirichlet", "dirichlet_equal"] = "iid"
    alpha: float = 0.1
    label_smoothing: float = 0.0

    name: ClassVar[str] = "imagenet"
    task: ClassVar[str] = "classification"
    source: ClassVar[str] = "russakovsky2014"
    stand_in: ClassVar[bool] = False
    train_size: ClassVar[int] = 1_281_167

    def __post_init__(self) -> None:
        check_shares("data", self, label_smoothing=0.1)
        partition_of(self.partition, self.alpha)
        if self.image_size < 1:
            raise ConfigError(
                "data.image_size", f"must be at least 1 pixel, not {self.image_size}."
            )
        if self.workers is not None and self.workers < 0:
            raise ConfigError("data.workers", f"must be 0 or more processes, not {self.workers}.")

    def load(self, dtype: torch.dtype) -> Dataset:
        """Load the images as bytes, so ``dtype`` has no effect."""
        from sgp_runner.data.images import Decoders, ImageFiles

        (files, labels), (valid_files, valid_labels) = (
            self.in_folders() if self.shards is None else self.in_shards(self.shards)
        )
        share = min(max(share_of_cores() - 1, 4), 16)
        decoders = Decoders(share if self.workers is None else self.workers)
        return Dataset(
            name=self.name,
            task=Classification(self.label_smoothing),
            train=ImageFiles(files, labels, self.image_size, True, decoders),
            valid=ImageFiles(valid_files, valid_labels, self.image_size, False, decoders),
            input_shape=(3, self.image_size, self.image_size),
            num_classes=int(labels.max()) + 1,
            partition=partition_of(self.partition, self.alpha),
            pixels=PIXELS,
        )

    def in_shards(self, folder: str) -> tuple[Labelled, Labelled]:
        from sgp_runner.data.shards import load_shards

        train, valid = load_shards(Path(folder))
        return (train, train.labels), (valid, valid.labels)

    def in_folders(self) -> tuple[Labelled, Labelled]:
        classes = self.classes("train")
        if extra := sorted(set(self.classes("val")) - set(classes)):
            raise ConfigError(
                "data.root",
                f"{self.root}/val has the class {extra[0]}, which {self.root}/train does not have.",
            )
        return self.files("train", classes, allow_empty=False), self.files(
            "val", classes, allow_empty=True
        )

    def classes(self, part: str) -> list[str]:
        """Return the names of the class folders, in order."""
        folder = Path(self.root) / part
        names = (
            sorted(path.name for path in folder.iterdir() if path.is_dir())
            if folder.is_dir()
            else []
        )
        if not names:
            raise ConfigError(
                "data.root",
                f"there is no ImageNet at {self.root}, whose images are in {part}/<class>/: "
                "get ILSVRC 2012 from image-net.org and unpack it with "
                "scripts/prepare_imagenet.sh, or set data.root.",
            )
        return names

    def files(self, part: str, classes: list[str], allow_empty: bool) -> Labelled:
        import torch

        from sgp_runner.utils.torchvision_import import import_torchvision

        import_torchvision()
        folder = importlib.import_module("torchvision.datasets.folder")
        numbers = {name: number for number, name in enumerate(classes)}
        try:
            files = folder.make_dataset(
                str(Path(self.root) / part), numbers, folder.IMG_EXTENSIONS, allow_empty=allow_empty
            )
        except FileNotFoundError as error:
            raise ConfigError("data.root", f"a class has no images: {error}.") from None
        if not files:
            raise ConfigError("data.root", f"the classes in {self.root}/{part} have no images.")
        paths, labels = zip(*files, strict=True)
        return paths, torch.tensor(labels)
