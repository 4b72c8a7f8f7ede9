"""Text of one's own: blocks, files, token files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.refusals import refusal

from sgp_runner.data.text import MODULES, PythonText, Text
from sgp_runner.utils.errors import ConfigError


def test_blocks_of_a_file_do_not_overlap_and_its_end_validates(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(b"abcdefghijklmnopqrst")
    data = Text(path=str(tmp_path / "book.txt"), block=3, valid_share=0.3).load(torch.float32)
    assert (len(data.train), len(data.valid), data.num_classes) == (4, 1, 256)
    (inputs,), targets = data.train.batch(torch.tensor([0, 3]))
    assert [bytes(row.tolist()) for row in (*inputs, *targets)] == [b"abc", b"jkl", b"bcd", b"klm"]
    (inputs,), targets = data.valid.batch(torch.tensor([0]))
    assert (bytes(inputs[0].tolist()), bytes(targets[0].tolist())) == (b"opq", b"pqr")


def test_files_of_a_folder_are_labels(tmp_path: Path) -> None:
    for name, length in (("a", 50), ("b", 0), ("c", 30)):
        (tmp_path / f"{name}.txt").write_bytes(b"x" * length)
    data = Text(path=str(tmp_path), block=4, valid_share=0.2).load(torch.float32)
    assert data.train.labels.tolist() == [0] * 9 + [2] * 5
    assert data.valid.labels.tolist() == [0, 0, 2]


def test_token_files_are_read_as_nanogpt_writes_them(tmp_path: Path) -> None:
    np.arange(40_000, 40_021, dtype=np.uint16).tofile(tmp_path / "train.bin")
    np.array([1, 2, 50_256], dtype=np.uint16).tofile(tmp_path / "val.bin")
    data = Text(path=str(tmp_path), block=2).load(torch.float32)
    assert (len(data.train), len(data.valid), data.num_classes) == (10, 1, 50_257)
    (inputs,), targets = data.train.batch(torch.tensor([9]))
    assert (inputs.tolist(), targets.tolist()) == ([[40_018, 40_019]], [[40_019, 40_020]])


@pytest.mark.parametrize(
    ("magic", "version", "kind"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")]
)
def test_the_header_of_llm_c_holds_no_tokens(
    magic: int, version: int, kind: str, tmp_path: Path
) -> None:
    def write(version: int, count: int) -> None:
        head = np.zeros(256, np.int32)
        head[:3] = magic, version, count
        path.write_bytes(head.tobytes() + np.arange(200).astype(kind).tobytes())

    path = tmp_path / "tokens.bin"
    write(version, 200)
    data = Text(path=str(path), block=9).load(torch.float32)
    assert (len(data.train), len(data.valid), data.num_classes) == (19, 2, 200)
    assert data.train.batch(torch.tensor([0]))[1].tolist() == [[*range(1, 10)]]
    size = 200 * np.dtype(kind).itemsize
    for given, sentence in (
        ((9, 200), f"its header has version 9, not {version}"),
        ((version, 201), f"its header declares 201 tokens of {kind}, but {size} bytes follow"),
    ):
        write(*given)
        assert (
            refusal(Text(path=str(path)).load, torch.float32).sentence
            == f"cannot read {path}: {sentence}."
        )


def test_only_visible_files_of_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("x" * 50)
    (tmp_path / ".git").mkdir()
    for name in (".DS_Store", ".git/index"):
        (tmp_path / name).write_bytes(bytes(50))
    assert len(Text(path=str(tmp_path), block=4, valid_share=0.2).load(torch.float32).train) == 9
    (tmp_path / "wide.txt").write_bytes("wide".encode("utf-16-le"))
    assert refusal(Text(path=str(tmp_path)).load, torch.float32).sentence == (
        f"{tmp_path}/wide.txt is not text: byte 1 is 0; save text as UTF-8; for tokens, give "
        "one file, or a folder with train.bin and val.bin."
    )


def test_the_end_of_a_single_file_of_tokens_validates(tmp_path: Path) -> None:
    tokens = np.arange(300, 320)
    np.save(tmp_path / "tokens.npy", tokens)
    tokens.astype(np.uint16).tofile(tmp_path / "tokens.bin")
    for kind in ("npy", "bin"):
        path = str(tmp_path / f"tokens.{kind}")
        dataset = Text(path=path, block=3, valid_share=0.3).load(torch.float32)
        assert (len(dataset.train), len(dataset.valid), dataset.num_classes) == (4, 1, 320)
        assert dataset.train.batch(torch.tensor([3]))[1].tolist() == [[310, 311, 312]]
        assert dataset.valid.batch(torch.tensor([0]))[1].tolist() == [[315, 316, 317]]
    np.save(tmp_path / "train.npy", tokens)
    np.save(tmp_path / "val.npy", tokens[:4])
    dataset = Text(path=str(tmp_path), block=3).load(torch.float32)
    assert (len(dataset.train), len(dataset.valid)) == (6, 1)


def test_files_that_have_no_tokens_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    for array, sentence in (
        (np.zeros(9), f"{path} has float64 [9], not integers [N]."),
        (np.zeros(9, bool), f"{path} has bool [9], not integers [N]."),
        (np.array([7, -5, 3]), f"{path} has the token -5: tokens count from 0."),
        (np.zeros((3, 3), int), f"{path} has int64 [3, 3], not integers [N]."),
    ):
        np.save(path, array)
        assert refusal(Text(path=str(path)).load, torch.float32).sentence == sentence
    np.save(path, np.arange(300))
    (tmp_path / "none.npy").write_bytes(b"no array")
    for data, sentence in (
        (Text(path=str(tmp_path / "none.npy")), r"^data.path: cannot read .*none.npy: "),
        (Text(path=str(path), vocabulary=299), "the files contain token 299: use more"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            data.load(torch.float32)


def test_the_library_has_all_modules() -> None:
    data = PythonText(block=256).load(torch.float32)
    assert set(data.train.labels.tolist()) == set(range(len(MODULES)))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_bytes(b"abc")
    for path, key, part in (
        (tmp_path / "none.txt", "data.path", "No such file"),
        (tmp_path / "short.txt", "data.block", "the training text is shorter than 65 tokens"),
    ):
        error = refusal(Text(path=str(path)).load, torch.float32)
        assert error.key == key and part in error.sentence
    with pytest.raises(ConfigError, match="^data.vocabulary: text is read as bytes: leave it out"):
        Text(path=str(tmp_path), vocabulary=9).load(torch.float32)
    with pytest.raises(ConfigError, match="give a file or a folder"):
        Text()
