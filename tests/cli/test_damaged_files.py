"""Files that are damaged or in the way: one sentence, exit code 2, and nothing half-written."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.refusals import TINY, refused

from sgp_runner.cli.main import main
from sgp_runner.utils.files import checksum

RUN = Path("results/runs/mine")


class Malice:
    """Its pickle makes a file when it is read."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch harm",)


CIFAR = [
    f"root/cifar-10-batches-py/{name}"
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
]
DATA: dict[str, tuple[str, dict[str, bytes], str]] = {
    # data set, its files, and a part of the sentence
    "no folder": (
        "cifar10",
        {},
        "root/cifar-10-batches-py is missing; get it with: sgp-run download cifar10 data.root=root",
    ),
    "a file for a folder": ("cifar10", {"root": b""}, "root/cifar-10-batches-py is missing"),
    "files that run code": (
        "cifar10",
        dict.fromkeys(CIFAR, pickle.dumps(Malice())),
        "root/cifar-10-batches-py/data_batch_1 is damaged: its checksum is not the published one",
    ),
    "no images": (
        "imagenet",
        {},
        "root lacks ImageNet's images in train/<class>/",
    ),
    "images in a file": ("imagenet", {"root": b""}, "root lacks ImageNet's images"),
    "an empty class": (
        "imagenet",
        {"root/train/a/x.txt": b"", "root/val/a/0.jpg": b""},
        "a class has no images",
    ),
    "nothing to validate": (
        "imagenet",
        {"root/train/a/0.jpg": b"", "root/val/a/x.txt": b""},
        "the classes in root/val have no images.",
    ),
    "no validation": (
        "imagenet",
        {"root/train/a/0.jpg": b""},
        "root lacks ImageNet's images in val/<class>/",
    ),
    "another class": (
        "imagenet",
        {"root/train/a/0.jpg": b"", "root/val/b/0.jpg": b""},
        "root/val has the class b, which root/train does not",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_are_not_what_they_should_be(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data, files, sentence = DATA[name]
    for path, content in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
    error = refused(
        ["logger=jsonl", "model=resnet8", "nodes=2", f"data={data}", "data.root=root"], capfd
    )
    assert error.startswith("sgp-run: data.root: ") and sentence in error


def test_an_image_that_is_none_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        path = Path(f"root/{'train' if number else 'val'}/a/{number}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no image")
    settings = ["logger=jsonl", "model=resnet8", "nodes=1", "batch_size=4"]
    assert main([*settings, "data=imagenet", "data.root=root", "data.workers=0"]) == 1
    assert re.fullmatch(
        r"sgp-run: .*root/train/a/\d.jpg cannot be read as an image \(.*\n", capfd.readouterr().err
    )


# What lies in the way, in a run that was cut off after a checkpoint.
CUT_OFF = ["checkpoint.every_steps=2", "checkpoint.keep=1", "optim.lr=30", "epochs=40"]


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run that stopped before its end, trained once for all tests."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*TINY, *CUT_OFF]) == 3
        (RUN / "diverged.json").unlink()
    return folder / "results"


def forged(state: object) -> Callable[[Path], None]:
    """A checkpoint holds another state, with the checksum of its file."""

    def forge(place: Path) -> None:
        torch.save(state, place / "run.pt")
        manifest = json.loads((place / "manifest.json").read_text())
        manifest["files"]["run.pt"] = checksum(place / "run.pt")
        (place / "manifest.json").write_text(json.dumps(manifest))

    return forge


def full_folder(path: Path) -> None:
    (path / "something").mkdir(parents=True)


def replaced(path: Path, make: Callable[[Path], None] = full_folder) -> Callable[[Path], None]:
    """A folder, or what ``make`` makes, stands where a file should be."""

    def replace(place: Path) -> None:
        path.unlink()
        make(path)

    return replace


IN_THE_WAY: dict[str, tuple[Callable[[Path], None], str]] = {
    "a checkpoint that runs code": (
        forged({"now": Malice()}),
        "resume: results/runs/mine/checkpoints/step-{} is not",
    ),
    "a checkpoint without a state": (forged([1, 2]), "is not used: it does not fit"),
    "a folder for a configuration": (
        replaced(RUN / "config.yaml"),
        "name: results/runs/mine/config.yaml cannot be read",
    ),
    "a folder for metrics": (
        replaced(RUN / "metrics.jsonl"),
        "results: cannot write to results/runs/mine/metrics.jsonl: Is a directory.",
    ),
    "a folder for the environment": (
        replaced(RUN / "environment.json"),
        "results: cannot write results/runs/mine/environment.json: Is a directory",
    ),
    "a binary configuration": (
        lambda place: (RUN / "config.yaml").write_bytes(b"\xff\x00"),
        "config.yaml cannot be read; choose another name",
    ),
    "an empty configuration": (
        lambda place: (RUN / "config.yaml").write_text(""),
        "config.yaml cannot be read; choose another name",
    ),
    "a list for a configuration": (
        lambda place: (RUN / "config.yaml").write_text("[1]"),
        "config.yaml cannot be read; choose another name",
    ),
    "metrics that are gone": (
        lambda place: os.truncate(RUN / "metrics.jsonl", 0),
        "resume: results/runs/mine/metrics.jsonl has 0 bytes",
    ),
    "a pipe for metrics": (
        replaced(RUN / "metrics.jsonl", os.mkfifo),
        "results: cannot write to results/runs/mine/metrics.jsonl: Not a regular file.",
    ),
    "a pipe for a configuration": (
        replaced(RUN / "config.yaml", os.mkfifo),
        "config.yaml cannot be read; choose another name",
    ),
    "a deep configuration": (
        lambda place: (RUN / "config.yaml").write_text("[" * 100_000),
        "config.yaml cannot be read; choose another name",
    ),
    "a configuration in itself": (
        lambda place: (RUN / "config.yaml").write_text("&a {format: 2, a: *a}"),
        "config.yaml cannot be read; choose another name",
    ),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_lies_in_the_way(
    name: str, stopped_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil, sentence = IN_THE_WAY[name]
    shutil.copytree(stopped_run, "results")
    place = max((RUN / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    spoil(place)
    capfd.readouterr()
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    assert main([*TINY, *CUT_OFF]) == 2
    *warnings, error = capfd.readouterr().err.splitlines()
    assert sentence.partition("{")[0] in error and error.startswith("sgp-run: ")
    refused = [f"warning: the checkpoint {place} is not used: it does not fit this run"]
    assert [warning.partition(" (")[0] for warning in warnings] == refused * ("checkpoint" in name)
    assert {
        path: path.read_bytes()
        for path in RUN.rglob("*")
        if path.is_file() and path.name != "environment.json"
    } == {path: content for path, content in before.items() if path.name != "environment.json"}
    assert not Path("harm").exists()


def test_presets_without_end_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine/experiment").mkdir(parents=True)
    Path("mine/experiment/bomb.yaml").write_text("a: &a [*a]\n")
    Path("mine/experiment/odd.yaml").write_text("a: [\n")
    assert refused([*TINY, "--config-dir", "mine", "experiment=bomb"], capfd) == (
        "sgp-run: --config-dir: mine/experiment/bomb.yaml cannot be read: *a contains itself or "
        "is not defined.\n"
    )


def test_a_damaged_summary_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    for text in ("[1]", "{", "\x00"):
        assert main([*TINY, "resume=never"]) == 0
        (RUN / "summary.json").write_text(text)
        assert main(TINY) == 0
        assert "finished already" not in capfd.readouterr().out
        assert json.loads((RUN / "summary.json").read_text())["algorithm"] == "SGP"


def test_a_folder_where_wandb_cannot_write_is_a_warning(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    RUN.mkdir(parents=True)
    (RUN / "wandb_id").mkdir()
    assert main([*TINY, "logger=wandb"]) == 0
    assert re.fullmatch(
        r"warning: W&B failed to start, so this run is in metrics.jsonl only \(.*\)\n",
        capfd.readouterr().err,
    )
    wandb.teardown()
