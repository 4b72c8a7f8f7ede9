"""Small data sets on disk, in the layouts of the real ones."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sgp_runner.data import pieces
from sgp_runner.data.numbers_en_de import sentences
from sgp_runner.utils.torchvision_import import import_torchvision

WNIDS = ("n01440764", "n01443537", "n02484975")
COLOURS = ((200, 60, 60), (60, 200, 60), (60, 60, 200))


def picture(
    random: np.random.Generator, colour: tuple[int, int, int], height: int, width: int
) -> Image.Image:
    """Noise around one colour."""
    return Image.fromarray(
        (np.array(colour) + random.integers(-50, 50, (height, width, 3))).astype(np.uint8)
    )


def image_folder(root: Path, train: int = 24, valid: int = 6) -> Path:
    """``root``/train/<wnid>/*.JPEG and ``root``/val/<wnid>/*.JPEG, images of several sizes; each
    class has a colour.
    """
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("val", valid)):
        for wnid, colour in zip(WNIDS, COLOURS, strict=True):
            folder = root / part / wnid
            folder.mkdir(parents=True)
            for i in range(count):
                picture(random, colour, 40 + i % 7, 48 - i % 5).save(folder / f"{wnid}_{i}.JPEG")
    return root


def cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All files of CIFAR-10 and CIFAR-100, with few images. torchvision checks them against
    checksums: those of these files, here.
    """
    import_torchvision("data")
    from torchvision import datasets

    random = np.random.default_rng(0)
    for kind in (datasets.CIFAR10, datasets.CIFAR100):
        folder, key = (
            root / kind.base_folder,
            "fine_labels" if kind is datasets.CIFAR100 else "labels",
        )
        folder.mkdir(parents=True)
        classes = 100 if kind is datasets.CIFAR100 else 10
        (folder / kind.meta["filename"]).write_bytes(
            pickle.dumps({kind.meta["key"]: [str(i) for i in range(classes)]})
        )
        monkeypatch.setitem(kind.meta, "md5", md5(folder / kind.meta["filename"]))
        for attribute in ("train_list", "test_list"):
            sums = []
            for name, _ in getattr(kind, attribute):
                labels = [i % classes for i in range(200 if classes == 100 else 40)]
                colours = (
                    np.array([COLOURS[label % 3] for label in labels])
                    .repeat(1024, 0)
                    .reshape(-1, 1024, 3)
                    .transpose(0, 2, 1)
                )
                images = (
                    (colours + random.integers(-50, 50, colours.shape))
                    .astype(np.uint8)
                    .reshape(-1, 3072)
                )
                (folder / name).write_bytes(pickle.dumps({"data": images, key: labels}))
                sums.append([name, md5(folder / name)])
            monkeypatch.setattr(kind, attribute, sums)
    return root


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def parallel_text(folder: Path, train: int = 600, valid: int = 40) -> Path:
    """Generated English and German text, German words in pieces ("drei@@ und@@ zwanzig"), under the
    names of Google's archive.
    """
    rows = sentences(train + 2 * valid)
    folder.mkdir(parents=True)
    parts = {
        "train.tok.clean.bpe.32000": rows[:train],
        "newstest2013.tok.bpe.32000": rows[train : train + valid],
        "newstest2014.tok.bpe.32000": rows[train + valid :],
    }
    for name, part in parts.items():
        (folder / f"{name}.en").write_text(
            "".join(f"{' '.join(pieces.english_words(en))}\n" for en, _, _ in part)
        )
        (folder / f"{name}.de").write_text("".join(f"{in_pieces(de)}\n" for _, de, _ in part))
    return folder


def in_pieces(german: str) -> str:
    return " ".join(
        "@@ ".join(pieces.german_pieces(word)) for word in german.replace(",", " ,").split()
    )


def binarised(folder: Path, text: Path) -> Path:
    """What scripts/prepare_wmt16.sh makes of it."""
    prefixes = {
        "train": "train.tok.clean.bpe.32000",
        "valid": "newstest2013.tok.bpe.32000",
        "test": "newstest2014.tok.bpe.32000",
    }
    command = [
        str(Path(sys.executable).with_name("fairseq-preprocess")),
        "--source-lang",
        "en",
        "--target-lang",
        "de",
    ]
    for split, prefix in prefixes.items():
        command += [f"--{split}pref", str(text / prefix)]
    command += ["--destdir", str(folder), "--joined-dictionary", "--workers", "1"]
    subprocess.run(command, check=True, capture_output=True)
    return folder
