"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), held in memory as bytes.

There are 50,000 training and 10,000 validation images [3, 32, 32].
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sgp_runner.data.byte_images import Images, image_data, labelled
from sgp_runner.data.dataset import Dataset, Pixels
from sgp_runner.data.label_settings import HeldOut
from sgp_runner.data.sampler import partition_of
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import require

if TYPE_CHECKING:
    import torch

PIXELS = {
    "cifar10": Pixels(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    "cifar100": Pixels(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
}

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVE_BYTES = {"cifar10": 170_498_071, "cifar100": 169_001_437}


@dataclass(frozen=True)
class Cifar(HeldOut):
    """CIFAR-10 (ten classes) or CIFAR-100 (a hundred classes).

    root: folder that contains cifar-10-batches-py/ or cifar-100-python/; not part of a run's name
    augment: train on random crops and flips
    """

    name: Literal["cifar10", "cifar100"]
    root: str = "data"
    augment: bool = True

    source: ClassVar[str] = "krizhevsky2009"
    train_size: ClassVar[int] = 50_000

    def load(self, dtype: torch.dtype) -> Dataset:
        """Load the images as bytes, so ``dtype`` has no effect.

        torchvision checks the files against their published checksums.
        """
        return image_data(
            self.name,
            self.split(train=True),
            self.split(train=False),
            PIXELS[self.name],
            num_classes=int(self.name.removeprefix("cifar")),
            partition=partition_of(self.partition, self.alpha),
            label_smoothing=self.label_smoothing,
            augment=self.augment,
            holdout=self.holdout,
        )

    def split(self, train: bool) -> Images:
        import torch

        if not (Path(self.root) / FOLDERS[self.name]).is_dir():
            require("data", "vision", "torchvision", otherwise=f", and then {self.download}")
        kind = kind_of(self.name)
        try:
            data = kind(self.root, train=train)
        except RuntimeError:  # missing, or wrong checksums
            raise self.unusable(kind) from None
        images = torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()
        return labelled(images, torch.tensor(data.targets))

    @property
    def download(self) -> str:
        """The command that downloads the files."""
        setting = "" if self.root == Cifar.root else f" data.root={quote(self.root)}"
        return f"sgp-run download {self.name}{setting}"

    def unusable(self, kind: Any) -> ConfigError:
        """Return the error for missing or damaged files, with the command that downloads them."""
        root = Path(self.root)
        if root.name == kind.base_folder:
            fix = f"data.root={root.parent}"
            return ConfigError("data.root", f"must be the folder above {root.name}; use {fix}.")
        folder = root / kind.base_folder
        clear = f"rm -r {quote(str(folder))} && " if folder.exists() else ""
        by_hand = (
            f"mkdir -p {quote(self.root)} && curl -L {url_of(self.name)} | "
            f"tar -xz -C {quote(self.root)}"
        )
        return ConfigError(
            "data.root",
            f"{defect(root, kind)}; get it with: {clear}{self.download}, or: {clear}{by_hand}",
        )


def kind_of(name: str) -> Any:
    """Return the torchvision class for the data set ``name``."""
    from sgp_runner.utils.torchvision_import import import_torchvision

    import_torchvision("data")
    return getattr(importlib.import_module("torchvision.datasets"), name.upper())


def url_of(name: str) -> str:
    """Return the published URL of the archive of the data set ``name``."""
    archive = name.replace("cifar", "cifar-")
    return f"https://www.cs.toronto.edu/~kriz/{archive}-python.tar.gz"


def defect(root: Path, kind: Any) -> str | None:
    """Describe the first missing or damaged file of a data set; None if all are intact.

    kind: torchvision class, which has the published checksums
    """
    folder = root / kind.base_folder
    if not folder.is_dir():
        return f"{folder} is missing"
    utils = importlib.import_module("torchvision.datasets.utils")
    meta = (kind.meta["filename"], kind.meta["md5"])
    for name, md5 in (*kind.train_list, *kind.test_list, meta):
        path = folder / name
        if not path.is_file():
            return f"{path} is missing"
        if not utils.check_integrity(str(path), md5):
            return f"{path} is damaged: its checksum is not the published one"
    return None
