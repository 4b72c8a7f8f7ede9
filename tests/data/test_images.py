"""Image data sets: their batches are the same in any process, however often a run is
cut off.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy
import pytest
import torch
from helpers.corpora import WNIDS, cifar, image_folder
from helpers.experiments import final_parameters, instrumented, make_experiment, steps_taken
from helpers.paths import RANKS
from helpers.processes import wait_until
from helpers.refusals import refusal
from PIL import Image

from sgp_runner.assembly.build import build_problem
from sgp_runner.assembly.real.launch import launch
from sgp_runner.assembly.start import execute
from sgp_runner.cli.main import main
from sgp_runner.data.byte_images import MARGIN, moved
from sgp_runner.data.cifar import Cifar
from sgp_runner.data.dataset import Dataset
from sgp_runner.data.decoding import decode
from sgp_runner.data.folder import Folder
from sgp_runner.data.imagenet import ImageNet
from sgp_runner.data.images import ImageFiles
from sgp_runner.recording.recorder import read_metrics
from sgp_runner.utils.errors import ConfigError, DataError
from sgp_runner.utils.seeding import seeds_of

REAL_RANK = str(RANKS / "real_rank.py")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("data") / "imagenet")


@pytest.fixture(params=[0, 2])
def dataset(request: pytest.FixtureRequest, root: Path) -> Iterator[Dataset]:
    data = ImageNet(root=str(root), image_size=32, workers=request.param).load(torch.float32)
    yield data
    data.train.close()


def pixels(data: Dataset, indices: list[int], seed: int = 0) -> torch.Tensor:
    (images,), _ = data.train.batch(torch.tensor(indices), seed)
    return images


# A folder of one's own


def test_a_folder_of_classes_is_divided_by_class(root: Path, tmp_path: Path) -> None:
    data = Folder(path=str(root / "train"), image_size=32, workers=0, valid_share=0.25)
    dataset, again = data.load(torch.float32), data.load(torch.float32)
    assert (len(dataset.train), len(dataset.valid), dataset.num_classes) == (54, 18, 3)
    assert [split.labels.bincount().tolist() for split in (dataset.train, dataset.valid)] == [
        [18, 18, 18],
        [6, 6, 6],
    ]
    assert not {*dataset.train.files} & {*dataset.valid.files}
    assert dataset.valid.files == again.valid.files
    (images,), labels = dataset.valid.batch(torch.tensor([17, 0]))
    assert images.float().mean((2, 3)).argmax(1).tolist() == labels.tolist() == [2, 0]


def test_a_folder_with_train_and_val_is_read_as_it_is(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data.valid_share: "):
        Folder(path=str(root / "train"), workers=0, valid_share=1e-9).load(torch.float32)
    found, published = (
        [data.load(torch.float32).train.files, data.load(torch.float32).valid.files]
        for data in (Folder(path=str(root), workers=0), ImageNet(root=str(root), workers=0))
    )
    assert found == published
    for made, sentence in (
        ("", f"{tmp_path} has no subfolder of images per class."),
        ("cat", "a class has no images: "),
        ("train/cat", f"{tmp_path} has train/ but no val/, valid/, test/."),
        ("val/dog", f"{tmp_path}/val has the class dog, unlike train/."),
    ):
        (tmp_path / made).mkdir(parents=True, exist_ok=True)
        assert refusal(Folder(path=str(tmp_path)).load, torch.float32).sentence.startswith(sentence)


def test_hidden_folders_and_files_hold_no_images(tmp_path: Path) -> None:
    root = image_folder(tmp_path / ".cache" / "imagenet", train=2, valid=1)
    for part in ("train", "val"):
        for hidden in (".ipynb_checkpoints/a.png", "new/a.JPEG", "new/.Trash/a.png", "new/._a.png"):
            path = root / part / hidden
            path.parent.mkdir(exist_ok=True)
            shutil.copyfile(root / part / WNIDS[0] / f"{WNIDS[0]}_0.JPEG", path)
    for config in (Folder(path=str(root), workers=0), ImageNet(root=str(root), workers=0)):
        data = config.load(torch.float32)
        assert (data.num_classes, len(data.train), len(data.valid)) == (4, 7, 4)
        assert data.train.labels is not None
        assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3]


def decoded(path: Path) -> list[int]:
    return sorted({*decode([str(path)], 8, None).flatten().tolist()})


@pytest.mark.parametrize("kind", ["png", "tiff", "pgm"])
def test_sixteen_bits_are_scaled_to_eight(kind: str, tmp_path: Path) -> None:
    for grey, level in ((3000, 12), (60_000, 233), (65_535, 255)):
        Image.fromarray(numpy.full((12, 12), grey, numpy.uint16)).save(tmp_path / f"a.{kind}")
        assert decoded(tmp_path / f"a.{kind}") == [level]


@pytest.mark.parametrize(
    ("kind", "what"), [("float32", "floats"), ("int32", "signed or 32-bit integers")]
)
def test_pixels_without_a_defined_white_are_refused(kind: str, what: str, tmp_path: Path) -> None:
    Image.fromarray(numpy.full((12, 12), 7, kind)).save(tmp_path / "a.tiff")
    with pytest.raises(
        DataError,
        match=rf"^{tmp_path}/a.tiff has {what}, whose white level is undefined: convert it to 8 "
        "bits.$",
    ):
        decoded(tmp_path / "a.tiff")


# ImageNet


def test_an_image_folder_has_its_classes_in_order(dataset: Dataset) -> None:
    assert (len(dataset.train), len(dataset.valid), dataset.num_classes, dataset.input_shape) == (
        72,
        18,
        3,
        (3, 32, 32),
    )
    assert dataset.train.labels is not None
    assert dataset.train.labels.bincount().tolist() == [24, 24, 24]
    (images,), labels = dataset.valid.batch(torch.tensor([17, 0]))
    assert (images.shape, images.dtype, labels.tolist()) == ((2, 3, 32, 32), torch.uint8, [2, 0])
    assert images.float().mean((2, 3)).argmax(1).tolist() == [2, 0]  # the colours of their classes


def test_evaluation_sees_the_centre(root: Path, dataset: Dataset) -> None:
    (images,), _ = dataset.valid.batch(torch.tensor([0]))
    with Image.open(root / "val" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG") as image:  # 48 x 40
        small = image.resize((44, 37), Image.Resampling.BILINEAR).crop((6, 2, 38, 34))
    assert torch.equal(
        images[0],
        torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        .view(32, 32, 3)
        .permute(2, 0, 1),
    )


def test_augmentation_depends_on_seed_and_sample_alone(dataset: Dataset) -> None:
    together = pixels(dataset, [3, 50, 7], seed=5)
    assert torch.equal(together, torch.cat([pixels(dataset, [i], seed=5) for i in (3, 50, 7)]))
    assert not torch.equal(together, pixels(dataset, [3, 50, 7], seed=6))
    state = torch.get_rng_state()
    pixels(dataset, [3], seed=5)
    assert torch.equal(state, torch.get_rng_state())


def test_processes_decode_what_this_one_does(root: Path) -> None:
    alone, helped = (
        ImageNet(root=str(root), image_size=48, workers=workers).load(torch.float32)
        for workers in (0, 3)
    )
    assert torch.equal(
        pixels(alone, [71, 0, 3, 9], seed=2**62), pixels(helped, [71, 0, 3, 9], seed=2**62)
    )
    helped.train.close()


SETTINGS = (
    "data=imagenet",
    "data.image_size=32",
    "nodes=2",
    "batch_size=6",
    "log_every=1",
    "checkpoint.every_minutes=null",
)


def settings(root: Path, *more: str) -> tuple[str, ...]:
    return (*SETTINGS, f"data.root={root}", *more)


@pytest.mark.parametrize("model", ["mlp", "resnet8"])
def test_a_run_has_the_same_bytes_with_and_without_processes(
    model: str, root: Path, tmp_path: Path
) -> None:
    ends = []
    for workers in (0, 2):
        overrides = settings(
            root, f"model={model}", "optim.lr=0.01", "epochs=1", f"data.workers={workers}"
        )
        experiment = make_experiment(tmp_path / str(workers), *overrides)
        assert execute(instrumented(experiment)) is not None
        ends.append(
            (
                experiment.name,  # workers are no part of it
                [params.tolist() for params in final_parameters(experiment)],
                [
                    {**record, "real_s": 0, "run_dir": ""}
                    for record in read_metrics(experiment.directory)
                ],
            )
        )
    assert ends[0] == ends[1]


def test_colours_are_learnt_and_called_what_they_are(root: Path, tmp_path: Path) -> None:
    experiment = make_experiment(
        tmp_path, *settings(root, "model=mlp", "epochs=4", "optim.lr=0.01", "data.workers=2")
    )
    summary = execute(experiment)
    assert summary is not None and summary["average"] == 1.0
    assert summary["label"] == "trained on imagenet; time simulated"


def test_dirichlet_deals_unequal_classes(root: Path, tmp_path: Path) -> None:
    overrides = settings(
        root, "model=mlp", "data.partition=dirichlet", "data.alpha=0.05", "data.workers=0"
    )
    problem = build_problem(make_experiment(tmp_path, *overrides).run)
    labels = problem.dataset.train.labels
    assert labels is not None
    shares = [
        torch.cat([labels[problem.sampler.indices(rank, step)] for step in range(6)]).bincount(
            minlength=3
        )
        for rank in (0, 1)
    ]
    assert max(int(share.max()) for share in shares) > 18  # of 36; 12 would be equal


def test_real_ranks_decode_too(root: Path, tmp_path: Path) -> None:
    overrides = settings(
        root, "model=mlp", "epochs=1", "optim.lr=0.01", "dtype=float64", "data.workers=1"
    )
    simulated, real = (
        make_experiment(tmp_path / network, *overrides, f"network={network}")
        for network in ("sim", "gloo")
    )
    execute(instrumented(simulated))
    launch(real, program=(REAL_RANK, "-1"))
    assert steps_taken(real) == [6, 6]
    for a, b in zip(final_parameters(simulated), final_parameters(real), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


# Processes that decode


def children_of(parent: int) -> list[int]:
    """Process ids of all descendants."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            above = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if above == parent:
            number = int(path.parent.name)
            found += [number, *children_of(number)]
    return found


def unheard_by(process: int) -> set[int]:
    """The signals that a process blocks or ignores."""
    masks = re.findall(r"Sig(?:Blk|Ign):\s+(\w+)", Path(f"/proc/{process}/status").read_text())
    return {
        number
        for number in range(1, 65)
        if any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    }


def alike(root: Path, *overrides: str) -> tuple[str, ...]:
    return settings(
        root, "model=mlp", "optim.lr=0.01", "logger=jsonl", "data.workers=2", *overrides
    )


def decoding(folder: Path, root: Path, *overrides: str) -> subprocess.Popen[str]:
    """The command, once it has recorded steps made of what its processes decode."""
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "sgp_runner", *alike(root, *overrides)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def lines(folder: Path) -> list[str]:
    return [
        line
        for path in folder.glob("results/runs/*/metrics.jsonl")
        for line in path.read_text().splitlines()
    ]


def wait_for_lines(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and len(lines(folder)) < count:
        time.sleep(0.01)


def wait_for_end(processes: list[int]) -> None:
    wait_until(
        lambda: not any(Path(f"/proc/{number}").exists() for number in processes),
        "the processes to end",
        200,
    )


def test_a_run_that_is_cut_off_ends_with_the_same_bytes_and_leaves_no_process(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    with monkeypatch.context() as inside:
        inside.chdir(whole)
        assert main([*alike(root, "epochs=8", "data.workers=0")]) == 0
    stopped = r"sgp-run: stopped by SIGUSR1; saved in \S+. Run the same command again to resume.\n"
    # SIGUSR1 as Slurm does: the processes that decode get it too.
    for send, number, code, said in (
        (os.kill, signal.SIGKILL, -signal.SIGKILL, ".*"),
        (os.killpg, signal.SIGUSR1, 75, stopped),
    ):
        process = decoding(cut, root, "epochs=8", "checkpoint.every_steps=2")
        wait_for_lines(cut, len(lines(cut)) + 12, process)
        family = children_of(process.pid)
        # Two that decode, one that starts them, one that watches over shared memory.
        assert len(family) == 4
        assert all(
            {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2} <= unheard_by(child)
            for child in family
        )
        send(process.pid, number)
        _, error = process.communicate(timeout=600)
        assert process.returncode == code and re.fullmatch(said, error, re.DOTALL)
        wait_for_end(family)
    process = decoding(cut, root, "epochs=8")
    out, error = process.communicate(timeout=600)
    assert (process.returncode, error) == (0, "") and "resumes from step" in out
    assert lines(cut)[:-1] == lines(whole)[:-1]  # the last line holds the real time


def test_a_process_that_dies_is_named(root: Path, tmp_path: Path) -> None:
    process = decoding(tmp_path, root, "epochs=1000")
    wait_for_lines(tmp_path, 10, process)
    family = children_of(process.pid)
    decoders = (
        number
        for number in family
        if b"forkserver" in Path(f"/proc/{number}/cmdline").read_bytes() and not children_of(number)
    )
    os.kill(next(decoders), signal.SIGKILL)
    _, error = process.communicate(timeout=600)
    where = r"(rank \d, step \d+: DataError: )?"  # none in an evaluation
    assert process.returncode == 1 and re.fullmatch(
        rf"sgp-run: {where}a decoding process has died, perhaps for lack of memory; "
        r"try fewer of them \(data\.workers\)\.\n",
        error,
    )
    wait_for_end(family)


def png_bomb(path: Path) -> None:
    """A picture of 100,000 x 100,000 pixels in a few bytes."""
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def cut_off(path: Path) -> None:
    path.write_bytes((path.parent / f"{WNIDS[1]}_0.JPEG").read_bytes()[:100])


@pytest.mark.parametrize(
    ("workers", "make", "reason"),
    [
        (0, cut_off, ".+"),
        (2, cut_off, ".+"),
        (0, png_bomb, "decompression bomb"),
        (0, os.mkfifo, "Not a regular file"),
    ],
    ids=["cut off", "cut off in a process", "a bomb", "a pipe"],
)
def test_a_damaged_image_and_one_without_end_are_named(
    workers: int, make: Callable[[Path], object], reason: str, tmp_path: Path
) -> None:
    root = image_folder(tmp_path / "imagenet", train=2)
    path = root / "train" / WNIDS[1] / f"{WNIDS[1]}_1.JPEG"
    path.unlink()
    make(path)
    data = ImageNet(root=str(root), image_size=32, workers=workers).load(torch.float32)
    with pytest.raises(
        DataError,
        match=rf"^{path} cannot be read as an image \(.*{reason}.*\); copy or download it again.$",
    ):
        data.train.batch(torch.arange(6))
    data.train.close()


@pytest.mark.parametrize(("cores", "count"), [(1, 4), (8, 7), (64, 16)])
def test_a_rank_decodes_on_its_share_of_the_cores(
    cores: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sgp_runner.data.class_folders.share_of_cores", lambda: cores)
    root = image_folder(tmp_path / "imagenet", train=2)
    train = ImageNet(root=str(root), image_size=32).load(torch.float32).train
    assert isinstance(train, ImageFiles) and train.decoders.count == count


# CIFAR


@pytest.mark.parametrize(
    ("name", "classes", "sizes"), [("cifar10", 10, (200, 40)), ("cifar100", 100, (200, 200))]
)
def test_cifar_is_read_by_torchvision(
    name: Literal["cifar10", "cifar100"],
    classes: int,
    sizes: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = Cifar(name, root=str(cifar(tmp_path, monkeypatch))).load(torch.float32)
    assert (len(data.train), len(data.valid), data.num_classes, data.input_shape) == (
        *sizes,
        classes,
        (3, 32, 32),
    )
    (images,), labels = data.valid.batch(torch.tensor([1, 2, 3]))
    assert images.dtype == torch.uint8 and labels.tolist() == [1, 2, 3]
    assert images.float().mean((2, 3)).argmax(1).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("data", "model"),
    [("cifar10", "resnet20"), pytest.param("cifar100", "resnet18", marks=pytest.mark.slow)],
)
def test_residual_networks_train_on_cifar(
    data: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cifar(tmp_path / "data", monkeypatch)
    experiment = make_experiment(
        tmp_path,
        f"data={data}",
        f"data.root={root}",
        f"model={model}",
        "nodes=2",
        "batch_size=25",
        "epochs=0.25",
        "log_every=1",
    )
    summary = execute(experiment)
    losses = [
        record["loss"] for record in read_metrics(experiment.directory) if record["kind"] == "train"
    ]
    assert summary is not None and summary["label"] == f"trained on {data}; time simulated"
    assert losses[0] == pytest.approx(
        torch.tensor(10.0 if data == "cifar10" else 100.0).log().item(), abs=0.1
    )  # nothing is known yet


def test_other_files_than_the_published_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cifar(tmp_path, monkeypatch)
    (root / "cifar-10-batches-py" / "data_batch_4").rename(root / "elsewhere")
    with pytest.raises(ConfigError, match="cifar-10-batches-py/data_batch_4 is missing; get it"):
        Cifar("cifar10", root=str(root)).load(torch.float32)
    (root / "elsewhere").rename(root / "cifar-10-batches-py" / "data_batch_4")
    with (root / "cifar-10-batches-py" / "data_batch_3").open("ab") as file:
        file.write(b"x")
    with pytest.raises(
        ConfigError,
        match="cifar-10-batches-py/data_batch_3 is damaged: its checksum is not the published one; "
        "get it with: rm -r .*/cifar-10-batches-py && sgp-run download cifar10 data.root=",
    ):
        Cifar("cifar10", root=str(root)).load(torch.float32)


def test_missing_torchvision_and_missing_files_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert refusal(Cifar("cifar10", root=str(tmp_path)).load, torch.float32).sentence == (
        "torchvision is not installed: pip install 'sgp-runner[vision]' "
        f"torch=={torch.__version__.partition('+')[0]}, "
        f"and then sgp-run download cifar10 data.root={tmp_path}."
    )


def test_the_inner_folder_is_not_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = cifar(tmp_path, monkeypatch) / "cifar-10-batches-py"
    assert refusal(Cifar("cifar10", root=str(root)).load, torch.float32).sentence == (
        f"must be the folder above cifar-10-batches-py; use data.root={tmp_path}."
    )


def test_an_image_is_moved_and_mirrored() -> None:
    image = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5)
    # Rows and columns of the window, counted from the margin's corner.
    where = MARGIN + 1 | MARGIN - 2 << 16
    plain, mirrored = (moved(image, torch.tensor([where | flip << 32])) for flip in (0, 1))
    assert plain[0, 0].tolist() == [
        [0, 0, 6, 7, 8],
        [0, 0, 11, 12, 13],
        [0, 0, 16, 17, 18],
        [0, 0, 21, 22, 23],
        [0, 0, 0, 0, 0],
    ]
    assert torch.equal(mirrored, plain.flip(3))
    assert torch.equal(moved(image, torch.tensor([MARGIN | MARGIN << 16])), image)


def test_every_move_is_as_likely() -> None:
    seeds = seeds_of(3, torch.arange(81_000))
    moves = (seeds & 0xFFFF) % 9 * 9 + ((seeds >> 16) & 0xFFFF) % 9
    assert (moves.bincount(minlength=81) - 1000).abs().max() < 150  # 4.7 standard deviations
    assert abs(int(((seeds >> 32) & 1).sum()) - 40_500) < 600


# Missing data


MISSING = {
    "imagenet": (
        "sgp-run: data.root: nowhere lacks ImageNet's images in train/<class>/: get ILSVRC 2012 "
        "from image-net.org and unpack it with scripts/prepare_imagenet.sh, or set data.root.\n"
    ),
    "cifar10": (
        "sgp-run: data.root: nowhere/cifar-10-batches-py is missing; get it with: sgp-run download "
        "cifar10 data.root=nowhere, or: mkdir -p nowhere && curl -L "
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz | tar -xz -C nowhere\n"
    ),
    "cifar100": (
        "sgp-run: data.root: nowhere/cifar-100-python is missing; get it with: sgp-run download "
        "cifar100 data.root=nowhere, or: mkdir -p nowhere && curl -L "
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz | tar -xz -C nowhere\n"
    ),
}


@pytest.mark.parametrize("data", MISSING)
@pytest.mark.usefixtures("in_an_empty_folder")
def test_missing_data_are_one_sentence_and_leave_nothing_behind(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"data={data}", "data.root=nowhere", "logger=jsonl"]) == 2
    assert capsys.readouterr().err == MISSING[data]
    assert list(tmp_path.iterdir()) == []


def test_classes_without_images_are_refused(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "imagenet", train=2)
    for part, sentence in (
        ("train", "data.root: a class has no images: .*n09999999"),
        ("val", "/val has the class n09999999, which .*/train does not have."),
    ):
        (root / part / "n09999999").mkdir()
        with pytest.raises(ConfigError, match=sentence):
            ImageNet(root=str(root)).load(torch.float32)
        (root / part / "n09999999").rmdir()
    for path in root.glob("val/*/*"):
        path.unlink()
    with pytest.raises(ConfigError, match="data.root: the classes in .*/val have no images."):
        ImageNet(root=str(root)).load(torch.float32)
