"""Small data sets on disk, in the layouts of the real ones."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sgp_runner.models.vision import import_torchvision

WNIDS = ("n01440764", "n01443537", "n02484975")
COLOURS = ((200, 60, 60), (60, 200, 60), (60, 60, 200))


def picture(random: np.random.Generator, colour: tuple[int, int, int], height: int, width: int) -> Image.Image:
    """Noise around one colour."""
    return Image.fromarray((np.array(colour) + random.integers(-50, 50, (height, width, 3))).astype(np.uint8))


def image_folder(root: Path, train: int = 24, valid: int = 6) -> Path:
    """``root``/train/<wnid>/*.JPEG and ``root``/val/<wnid>/*.JPEG, images of several sizes; each class has a colour."""
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("val", valid)):
        for wnid, colour in zip(WNIDS, COLOURS, strict=True):
            folder = root / part / wnid
            folder.mkdir(parents=True)
            for i in range(count):
                picture(random, colour, 40 + i % 7, 48 - i % 5).save(folder / f"{wnid}_{i}.JPEG")
    return root


def cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All files of CIFAR-10 and CIFAR-100, with few images. torchvision checks them against checksums: those of these files, here."""
    import_torchvision()
    from torchvision import datasets

    random = np.random.default_rng(0)
    for kind in (datasets.CIFAR10, datasets.CIFAR100):
        folder, key = root / kind.base_folder, "fine_labels" if kind is datasets.CIFAR100 else "labels"
        folder.mkdir(parents=True)
        classes = 100 if kind is datasets.CIFAR100 else 10
        (folder / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: [str(i) for i in range(classes)]}))
        monkeypatch.setitem(kind.meta, "md5", md5(folder / kind.meta["filename"]))
        for attribute in ("train_list", "test_list"):
            sums = []
            for name, _ in getattr(kind, attribute):
                labels = [i % classes for i in range(200 if classes == 100 else 40)]
                colours = np.array([COLOURS[label % 3] for label in labels]).repeat(1024, 0).reshape(-1, 1024, 3).transpose(0, 2, 1)
                images = (colours + random.integers(-50, 50, colours.shape)).astype(np.uint8).reshape(-1, 3072)
                (folder / name).write_bytes(pickle.dumps({"data": images, key: labels}))
                sums.append([name, md5(folder / name)])
            monkeypatch.setattr(kind, attribute, sums)
    return root


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()
