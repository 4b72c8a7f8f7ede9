"""ImageNet in shards: those of the real webdataset package are read, and ours by it."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path

import numpy
import pytest
import torch
import webdataset
from helpers.corpora import WNIDS, image_folder
from helpers.experiments import final_parameters, instrumented, make_experiment
from helpers.paths import ROOT

import make_shards
from sgp_runner.assembly.start import execute
from sgp_runner.cli.main import main
from sgp_runner.data.dataset import Dataset
from sgp_runner.data.imagenet import ImageNet
from sgp_runner.data.images import ImageFiles
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.errors import ConfigError, DataError

SCRIPT = ROOT / "scripts" / "make_shards.py"
PARTS = ("train", "val")


def made_again(root: Path, out: Path, *words: str) -> tuple[int | str | None, str]:
    """The exit code of the script, in this process, and what it says of errors."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as error:
        try:
            return make_shards.main([f"--root={root}", f"--out={out}", *words]), error.getvalue()
        except SystemExit as end:
            return end.code, error.getvalue()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("data") / "imagenet")


@pytest.fixture(scope="module")
def made(root: Path) -> Path:
    """Shards by scripts/make_shards.py."""
    command = [
        sys.executable,
        str(SCRIPT),
        f"--root={root}",
        f"--out={root.parent / 'made'}",
        "--samples=10",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    report = (
        f"{root.parent}/made: 72 training images (complete: 1281167), 18 validation images "
        "(complete: 50000)\n"
    )
    assert done.stdout == report
    return root.parent / "made"


def key_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.fixture(scope="module")
def shuffled(root: Path) -> tuple[Path, dict[str, list[Path]]]:
    """Shards by webdataset, with files that mean nothing to us, and the images in their order."""
    folder = root.parent / "shuffled"
    folder.mkdir()
    orders = {}
    for part in PARTS:
        orders[part] = random.Random(3).sample(
            paths := sorted((root / part).glob("*/*")), len(paths)
        )
        with webdataset.ShardWriter(
            str(folder / f"{part}-%06d.tar"), maxcount=7, verbose=0
        ) as writer:
            for path in orders[part]:
                sample = {
                    "jpg": path.read_bytes(),
                    "cls": WNIDS.index(path.parent.name),
                    "json": {"name": path.name},
                }
                writer.write({"__key__": key_of(path), **sample})
    return folder, orders


def load(shards: Path, workers: int = 0) -> Dataset:
    return ImageNet(root="nowhere", shards=str(shards), image_size=32, workers=workers).load(
        torch.float32
    )


def contents(split: object) -> list[bytes]:
    assert isinstance(split, ImageFiles)
    return [
        file.open().read()
        for file in map(split.files.__getitem__, range(len(split)))
        if not isinstance(file, str)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_of_webdataset_hold_the_images_of_the_folders(
    workers: int, root: Path, shuffled: tuple[Path, dict[str, list[Path]]]
) -> None:
    folder, orders = shuffled
    assert len(list(folder.glob("train-*.tar"))) == 11
    data, plain = (
        load(folder, workers),
        ImageNet(root=str(root), image_size=32, workers=0).load(torch.float32),
    )
    assert (len(data.train), len(data.valid), data.num_classes, data.input_shape) == (
        72,
        18,
        3,
        (3, 32, 32),
    )
    for split, part in ((data.train, "train"), (data.valid, "val")):
        assert contents(split) == [path.read_bytes() for path in orders[part]]
        assert split.labels is not None and split.labels.tolist() == [
            WNIDS.index(path.parent.name) for path in orders[part]
        ]
    places = torch.tensor(
        [sorted((root / "val").glob("*/*")).index(path) for path in orders["val"]]
    )
    (images,), labels = data.valid.batch(torch.arange(18))
    (same,), targets = plain.valid.batch(places)
    assert torch.equal(images, same) and torch.equal(labels, targets)
    data.train.close()


def test_webdataset_reads_what_the_script_makes(root: Path, made: Path) -> None:
    assert [path.name for path in sorted(made.glob("*.tar"))][:2] == [
        "train-000000.tar",
        "train-000001.tar",
    ]
    for part in PARTS:
        paths = sorted((root / part).glob("*/*"))
        samples = list(
            webdataset.WebDataset(sorted(map(str, made.glob(f"{part}-*.tar"))), shardshuffle=False)
        )
        assert [sample["__key__"] for sample in samples] == [key_of(path) for path in paths]
        assert [sample["jpg"] for sample in samples] == [path.read_bytes() for path in paths]
        assert [int(sample["cls"]) for sample in samples] == [
            WNIDS.index(path.parent.name) for path in paths
        ]


def test_a_run_on_shards_has_the_bytes_of_one_on_folders(
    root: Path, made: Path, tmp_path: Path
) -> None:
    words = (
        "data=imagenet",
        "data.image_size=32",
        "nodes=2",
        "batch_size=6",
        "log_every=1",
        "model=mlp",
        "optim.lr=0.01",
        "epochs=2",
    )
    ends, names = [], []
    for choice in (
        f"data.root={root}",
        f"data.shards={made}",
        f"data.shards={made} data.workers=2",
    ):
        experiment = make_experiment(
            tmp_path / str(len(ends)), *words, "data.workers=0", *choice.split()
        )
        assert execute(instrumented(experiment)) is not None
        records = [
            {**record, "real_s": 0, "run_dir": "", "name": ""}
            for record in read_metrics(experiment.directory)
        ]
        ends.append((records, [parameters.tolist() for parameters in final_parameters(experiment)]))
        names.append(experiment.name)
    assert ends[0] == ends[1] == ends[2]
    assert names[0] != names[1] == names[2]  # other shards may have another order


# Making them


def test_shards_are_made_once(root: Path, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert made_again(root, out, "--samples=10") == (0, "")
    assert {path.name: path.read_bytes() for path in out.glob("*.tar")} == {
        path.name: path.read_bytes() for path in made.glob("*.tar")
    }
    (out / "train-000002.tar").unlink()
    (out / ".train-000002.tar.part").write_bytes(b"half")
    (out / "train-000001.tar").touch()
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    assert made_again(root, out, "--samples=10") == (0, "")
    assert (
        times.items() < {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}.items()
    )
    assert not list(out.glob(".*"))
    assert (out / "train-000002.tar").read_bytes() == (made / "train-000002.tar").read_bytes()
    sentence = (
        f"make_shards.py: {out} has other shards too, or with another --samples; remove them.\n"
    )
    assert made_again(root, out, "--samples=7") == (2, sentence)


def test_shards_of_no_images_are_refused(tmp_path: Path) -> None:
    code, error = made_again(tmp_path, tmp_path / "out")
    assert code == 2 and error.startswith(
        f"make_shards.py: data.root: there is no ImageNet at {tmp_path}, "
    )
    code, error = made_again(tmp_path, tmp_path / "out", "--samples=0")
    assert code == 2 and error.endswith("error: --samples must be at least 1, not 0\n")
    assert list(tmp_path.iterdir()) == []


# The index


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A training shard of five samples and one of a single sample, and a validation shard."""
    add(
        tmp_path / "train-000000.tar",
        **{
            f"{i}.{kind}": value
            for i in range(5)
            for kind, value in (("jpg", "image"), ("cls", f"{i % 3}"))
        },
    )
    add(
        tmp_path / "train-000001.tar",
        **{"5.png": "image", "5.cls": "2\n", "README": "", "__meta__.txt": "", "6.json": "{}"},
    )
    add(tmp_path / "val-000000.tar", **{"0.jpg": "image", "0.cls": "2"})
    return tmp_path


def add(shard: Path, **files: str) -> None:
    with tarfile.open(shard, "w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, BytesIO(text.encode()))


def test_hidden_members_are_no_samples(few: Path) -> None:
    hidden = {"./.Trash/1.jpg": "old", "./.Trash/1.cls": "7", "./new/._1.jpg": "mac"}
    add(few / "train-000001.tar", **hidden, **{"./new/2.jpg": "image", "./new/2.cls": "1"})
    labels = load(few).train.labels
    assert labels is not None and labels.tolist() == [0, 1, 2, 0, 1, 1]


def test_samples_are_searched_for_once(few: Path) -> None:
    labels = load(few).train.labels
    assert labels is not None and labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert sorted(path.name for path in few.glob("*index*")) == ["train-index.npz", "val-index.npz"]
    shard = few / "train-000000.tar"
    whole = shard.read_bytes()
    shard.write_bytes(bytes(len(whole)))  # no samples, if somebody looked
    assert contents(load(few).train)[5] == b"image"
    shard.write_bytes(bytes(len(whole) + 512))
    with pytest.raises(
        ConfigError,
        match=f"data.shards: {shard} has no samples, <key>.jpg and <key>.cls; copy it again",
    ):
        load(few)
    shard.write_bytes(whole)
    for damaged in (b"", b"PK\x03\x04", (few / "train-index.npz").read_bytes()[:-50]):
        (few / "train-index.npz").write_bytes(damaged)
        assert contents(load(few).train) == [b"image"] * 6
        assert (few / "train-index.npz").stat().st_size > len(damaged)


@pytest.mark.parametrize(
    "samples",
    [
        [[0, 512, 5, 0], [7, 512, 5, 1]],  # of no shard
        [[0, 512, 10**12, 0]],
        [[0, -1, 5, 0]],
        [[0, 512, 5, -1]],
        [[0, 512, 5]],
        [0.5],
    ],
)
def test_a_forged_index_is_made_again(samples: object, few: Path) -> None:
    index = few / "train-index.npz"
    load(few)
    with numpy.load(index) as known:
        names, sizes, before = known["names"], known["sizes"], known["visible"]
    numpy.savez_compressed(index, names=names, sizes=sizes, visible=numpy.array(samples))
    labels = load(few).train.labels
    assert labels is not None and labels.tolist() == [0, 1, 2, 0, 1, 2]
    with numpy.load(index) as known:
        assert numpy.array_equal(known["visible"], before)


def test_an_index_that_may_list_hidden_files_is_made_again(few: Path) -> None:
    index = few / "train-index.npz"
    load(few)
    with numpy.load(index) as known:
        names, sizes, samples = known["names"], known["sizes"], known["visible"]
    numpy.savez_compressed(index, names=names, sizes=sizes, samples=samples[:1])
    assert len(load(few).train) == 6


def test_a_folder_that_cannot_be_written_is_read(
    few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (few / "train-index.npz").mkdir()
    assert len(load(few).train) == 6
    error = capsys.readouterr().err
    assert error.startswith(f"warning: {few}/train-index.npz cannot be written (")
    assert error.endswith("), so every run searches the shards again.\n") and error.count("\n") == 1
    assert not list(few.glob(".*"))


# Damage


def test_missing_shards_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data=imagenet", "data.shards=nowhere", "logger=jsonl"]) == 2
    make = (
        "make shards of ImageNet's folders with scripts/make_shards.py, or read the folders with "
        "data.shards=null"
    )
    assert (
        capsys.readouterr().err
        == f"sgp-run: data.shards: there are no train-*.tar in nowhere; {make}.\n"
    )
    assert list(tmp_path.iterdir()) == []


def cut(size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / "train-000000.tar", size)


def garbled(folder: Path) -> None:
    with (folder / "train-000000.tar").open("r+b") as file:
        file.seek(2048)
        file.write(b"x" * 512)


AGAIN = "copy it again, or remove it and make it with scripts/make_shards.py."
NO_ARCHIVE = (
    r"data.shards: {0}/train-000000.tar is no tar archive, or not all of one \(.+\); " + AGAIN
)
NO_SAMPLE = (
    r"data.shards: the sample 0 of {0}/train-000000.tar is not one image \(.jpg\) and one "
    r"class \(.cls, a number from 0\); "
) + AGAIN
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (cut(0), NO_ARCHIVE),
    "cut within a header": (cut(1124), NO_ARCHIVE),
    "cut within an image": (cut(514), NO_ARCHIVE),
    "cut within a class": (cut(1536), NO_ARCHIVE),
    "cut between samples": (cut(2048), NO_ARCHIVE),
    "a header overwritten": (garbled, NO_ARCHIVE),
    "no class": (
        lambda folder: add(folder / "train-000000.tar", **{"0.jpg": "image", "1.cls": "0"}),
        NO_SAMPLE,
    ),
    "two images": (
        lambda folder: add(
            folder / "train-000000.tar", **{"0.jpg": "a", "0.png": "b", "0.cls": "0"}
        ),
        NO_SAMPLE,
    ),
    "no number": (
        lambda folder: add(folder / "train-000000.tar", **{"0.jpg": "image", "0.cls": "cat"}),
        NO_SAMPLE,
    ),
    "a negative number": (
        lambda folder: add(folder / "train-000000.tar", **{"0.jpg": "image", "0.cls": "-1"}),
        NO_SAMPLE,
    ),
    "a number without end": (
        lambda folder: add(
            folder / "train-000000.tar", **{"0.jpg": "image", "0.cls": "1" + "0" * 30}
        ),
        NO_SAMPLE,
    ),
    "a pipe": (
        lambda folder: os.mkfifo(folder / "train-000002.tar"),
        r"data.shards: {0}/train-000002.tar is no tar archive, .+Not a regular file.+\); " + AGAIN,
    ),
    "a gap": (
        lambda folder: add(folder / "train-000003.tar", **{"0.jpg": "image", "0.cls": "0"}),
        (
            "data.shards: the shard after {0}/train-000001.tar is missing; copy it, or make it "
            "with scripts/make_shards.py."
        ),
    ),
    "gone elsewhere": (
        lambda folder: (folder / "train-000002.tar").symlink_to(folder / "nowhere"),
        (
            r"data.shards: {0}/train-000002.tar is no tar archive, or not all of one \(.+No such "
            r"file.+\); "
        )
        + AGAIN,
    ),
    "classes from 1": (
        lambda folder: add(folder / "train-000000.tar", **{"0.jpg": "image", "0.cls": "3"}),
        (
            "data.shards: the train shards in {0} have no sample of class 0, but of class 3; "
            "classes count from 0."
        ),
    ),
    "unknown class": (
        lambda folder: add(folder / "val-000000.tar", **{"0.jpg": "image", "0.cls": "3"}),
        "data.shards: the val shards in {0} have the class 3, the train shards only 0 to 2.",
    ),
    "no validation": (
        lambda folder: (folder / "val-000000.tar").unlink(),
        "data.shards: there are no val-\\*.tar in {0}; make shards of .+",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_shards_are_one_sentence(damage: str, few: Path) -> None:
    do, sentence = DAMAGE[damage]
    do(few)
    with pytest.raises(ConfigError) as caught:
        load(few)
    assert re.fullmatch(sentence.format(few), str(caught.value))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_named(workers: int, few: Path) -> None:
    data = load(few, workers)
    with pytest.raises(
        DataError,
        match=(
            rf"^{few}/train-000000.tar, at byte 512, cannot be read as an image \(.+\); copy or "
            "download it again.$"
        ),
    ):
        data.train.batch(torch.tensor([0, 5]))
    data.train.close()
