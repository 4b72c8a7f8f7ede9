"""The scripts that unpack ImageNet and WMT'16, on small archives of the same form."""

from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.corpora import WNIDS, image_folder, parallel_text
from helpers.paths import ROOT

from sgp_runner.data.imagenet import ImageNet
from sgp_runner.data.wmt16_en_de import WMT16EnDe

SCRIPTS = ROOT / "scripts"
needs_fairseq = pytest.mark.skipif(
    importlib.util.find_spec("fairseq") is None,
    reason="fairseq is not installed: make .venv/.fairseq",
)


def prepare(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / script), *arguments],
        check=False,
        cwd=folder,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    """The three archives of ILSVRC 2012, and the images that they were made of."""
    from scipy.io import savemat

    images = image_folder(tmp_path / "images", train=3, valid=2)
    with tarfile.open(tmp_path / "train.tar", "w") as outer:
        for wnid in WNIDS:
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as archive:
                for path in sorted((images / "train" / wnid).iterdir()):
                    add(archive, path.name, path.read_bytes())
            add(outer, f"{wnid}.tar", inner.getvalue())
    numbers = {"n01440764": 7, "n01443537": 2, "n02484975": 11}  # the kit's, which are in no order
    truth, lines = [], []
    with tarfile.open(tmp_path / "val.tar", "w") as archive:
        for i, path in enumerate(
            sorted((images / "val").glob("*/*"), key=lambda path: path.name[-6:]), 1
        ):
            add(archive, f"ILSVRC2012_val_{i:08d}.JPEG", path.read_bytes())
            truth.append(f"{numbers[path.parent.name]}\n")
            lines.append(f"ILSVRC2012_val_{i:08d}.JPEG {path.parent.name}\n")
    synsets = np.array(
        [(number, wnid) for wnid, number in numbers.items()],
        dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")],
    )
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets})
    with tarfile.open(tmp_path / "devkit.tar.gz", "w:gz") as archive:
        add(archive, "ILSVRC2012_devkit_t12/data/meta.mat", meta.getvalue())
        add(
            archive,
            "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
            "".join(truth).encode(),
        )
    (tmp_path / "classes.txt").write_text("".join(lines))
    return tmp_path


def contents(root: Path, part: str) -> dict[str, list[bytes]]:
    return {
        folder.name: sorted(path.read_bytes() for path in folder.iterdir())
        for folder in (root / part).iterdir()
    }


@pytest.mark.parametrize("key", ["devkit.tar.gz", "classes.txt"])
def test_imagenet_is_unpacked_into_its_classes(key: str, archives: Path) -> None:
    done = prepare("prepare_imagenet.sh", archives, "train.tar", "val.tar", key, "out put")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "out put: 3 classes, 9 training images (complete: 1281167), 6 validation images "
        "(complete: 50000)\n"
    )
    for part in ("train", "val"):
        assert contents(archives / "out put", part) == contents(archives / "images", part)
    data = ImageNet(root=str(archives / "out put"), image_size=32, workers=0).load(torch.float32)
    assert (len(data.train), len(data.valid), data.num_classes) == (9, 6, 3)


def test_imagenet_goes_on_where_it_was_interrupted(archives: Path) -> None:
    root = archives / "data" / "imagenet"
    (root / "train" / WNIDS[0]).mkdir(parents=True)  # done before, to be left alone
    (root / ".part").mkdir()
    (root / ".part" / "half").touch()
    arguments = ("train.tar", "val.tar", "devkit.tar.gz")
    assert prepare("prepare_imagenet.sh", archives, *arguments).returncode == 0
    assert len(list(root.glob("train/*/*.JPEG"))) == 6 and len(list(root.glob("val/*/*.JPEG"))) == 6
    (archives / "val.tar").write_bytes(b"")
    assert prepare("prepare_imagenet.sh", archives, *arguments).returncode == 0
    assert sorted(path.name for path in root.iterdir()) == ["train", "val"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("train.tar",),
            "usage: scripts/prepare_imagenet.sh TRAIN.tar VAL.tar DEVKIT.tar.gz|CLASSES.txt [ROOT]",
        ),
        (
            ("train.tar", "no.tar", "classes.txt"),
            "there is no file 'no.tar'; get the archives of ILSVRC 2012 from image-net.org.",
        ),
        (
            ("classes.txt", "val.tar", "classes.txt"),
            "'classes.txt' is no tar archive, or not all of one.",
        ),
        (
            ("val.tar", "val.tar", "classes.txt"),
            (
                "'val.tar' holds no archives of classes (n01440764.tar, ...): is it "
                "ILSVRC2012_img_train.tar?"
            ),
        ),
        (
            ("train.tar", "classes.txt", "classes.txt"),
            "'classes.txt' is no tar archive, or not all of one.",
        ),
        (
            ("train.tar", "train.tar", "classes.txt"),
            (
                "the validation archive holds no images (ILSVRC2012_val_00000001.JPEG, ...): is "
                "it ILSVRC2012_img_val.tar?"
            ),
        ),
        (
            ("train.tar", "val.tar", "train.tar"),
            "'train.tar' has no meta.mat: is it ILSVRC2012_devkit_t12.tar.gz?",
        ),
        (
            ("train.tar", "val.tar", "short.txt"),
            (
                "'short.txt' does not say of which class ILSVRC2012_val_00000002.JPEG is, nor of "
                "4 others."
            ),
        ),
    ],
)
def test_imagenet_from_other_files_is_refused(
    arguments: tuple[str, ...], sentence: str, archives: Path
) -> None:
    (archives / "short.txt").write_text("ILSVRC2012_val_00000001 n01440764\n")
    done = prepare("prepare_imagenet.sh", archives, *arguments)
    assert (done.returncode, done.stderr) == (2, f"prepare_imagenet.sh: {sentence}\n")
    assert not (archives / "data" / "imagenet" / "val").exists()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = parallel_text(tmp_path / "text", train=100, valid=10)
    with tarfile.open(tmp_path / "wmt16_en_de.tar.gz", "w:gz") as archive:
        archive.add(folder, "")
    return tmp_path


@needs_fairseq
def test_wmt16_is_binarised_once(text: Path) -> None:
    done = prepare("prepare_wmt16.sh", text, "wmt16_en_de.tar.gz")
    assert (done.returncode, done.stderr) == (0, "")
    data = WMT16EnDe(root=str(text / "data" / "wmt16_en_de"), evaluate_on="test").load(
        torch.float32
    )
    assert (len(data.train), len(data.valid)) == (100, 10) and data.num_classes % 8 == 0
    assert [path.name for path in (text / "data").iterdir()] == ["wmt16_en_de"]
    again = prepare("prepare_wmt16.sh", text, "wmt16_en_de.tar.gz")
    assert (again.returncode, again.stdout) == (0, "data/wmt16_en_de is there already\n")


@needs_fairseq
@pytest.mark.parametrize(
    ("archive", "sentence"),
    [
        (
            "nothing.tar.gz",
            "there is no file 'nothing.tar.gz'; the head of this script says where to get it.",
        ),
        (
            "text/newstest2014.tok.bpe.32000.de",
            "'text/newstest2014.tok.bpe.32000.de' is no tar archive, or not all of one.",
        ),
        (
            "other.tar.gz",
            "'other.tar.gz' has no train.tok.clean.bpe.32000.de: is it wmt16_en_de.tar.gz?",
        ),
        (
            "uneven.tar.gz",
            (
                "train.tok.clean.bpe.32000 has 100 English and 10 German lines; they should be as "
                "many."
            ),
        ),
    ],
)
def test_wmt16_from_other_files_is_refused(archive: str, sentence: str, text: Path) -> None:
    with tarfile.open(text / "other.tar.gz", "w:gz") as other:
        other.add(text / "text" / "train.tok.clean.bpe.32000.en", "train.tok.clean.bpe.32000.en")
    with tarfile.open(text / "uneven.tar.gz", "w:gz") as uneven:
        uneven.add(text / "text" / "train.tok.clean.bpe.32000.en", "train.tok.clean.bpe.32000.en")
        uneven.add(text / "text" / "newstest2013.tok.bpe.32000.de", "train.tok.clean.bpe.32000.de")
    done = prepare("prepare_wmt16.sh", text, archive)
    assert (done.returncode, done.stderr) == (2, f"prepare_wmt16.sh: {sentence}\n")
    assert not (text / "data" / "wmt16_en_de").exists()
