"""Text of Hugging Face's data sets: blocks, the parts of nodes, and refusals."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from helpers.hub_folders import END, hosts_asked_for, save_gpt2, save_json, save_tokenizer, texts
from helpers.refusals import refusal

from sgp_runner.config.overrides import experiment_of
from sgp_runner.data.dataset import Dataset
from sgp_runner.data.documents import StreamSplit
from sgp_runner.data.hub_text import HubText
from sgp_runner.data.tasks import SubwordModelling
from sgp_runner.utils.errors import DataError
from sgp_runner.utils.hub import import_hub, reaches_hub

NOWHERE = "http://127.0.0.1:9"  # no server listens there


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "words")


def loaded(path: str, tokenizer: str, **more: Any) -> Dataset:
    return HubText(path=path, tokenizer=tokenizer, **{"block": 4, **more}).load(torch.float32)


def all_tokens(dataset: Dataset) -> list[list[int]]:
    """Return the inputs of every training block, each with its last target."""
    (inputs,), targets = dataset.train.batch(torch.arange(len(dataset.train)))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    return torch.cat([inputs, targets[:, -1:]], 1).tolist()


def saved(folder: Path, **splits: list[str]) -> str:
    """Save splits with save_to_disk; a single one without the name of a split."""
    datasets = import_hub("datasets", "data")
    made = {
        name: datasets.Dataset.from_dict({"text": rows, "n": [*range(len(rows))]})
        for name, rows in splits.items()
    }
    found = datasets.DatasetDict(made) if len(made) > 1 else made["train"]
    found.save_to_disk(str(folder))
    return str(folder)


def test_documents_are_packed_into_blocks(tmp_path: Path, tokenizer: str) -> None:
    path = saved(tmp_path / "data", train=["a b c", "", "d e f g", "h zzz"], validation=["a b c d"])
    data = loaded(path, tokenizer, valid_split="validation", valid_size=1)
    # 2 3 4 END 5 6 7 8 END 9 UNKNOWN END: the last three fill no block.
    assert all_tokens(data) == [[2, 3, 4, END, 5], [5, 6, 7, 8, END]]
    (inputs,), targets = data.valid.batch(torch.tensor([0]))
    assert (inputs.tolist(), targets.tolist()) == ([[2, 3, 4, 5]], [[3, 4, 5, END]])
    assert (data.num_classes, data.input_shape, inputs.dtype) == (10, (4,), torch.int64)


def test_files_are_read_with_their_splits(tmp_path: Path, tokenizer: str) -> None:
    path = save_json(tmp_path / "data", ["a b c d", "e f g h"])
    save_json(tmp_path / "data", ["h g f e"], "validation")
    whole, stream = (
        loaded(path, tokenizer, valid_split="validation", **more)
        for more in ({}, {"streaming": True, "tokens": 4, "buffer": 1})
    )
    for data in (whole, stream):
        (inputs,), targets = data.valid.batch(torch.tensor([0]))
        assert (inputs.tolist(), targets.tolist()) == ([[9, 8, 7, 6]], [[8, 7, 6, END]])
    assert all_tokens(whole) == [[2, 3, 4, 5, END], [END, 6, 7, 8, 9]]
    sampler = stream.partition.sampler(stream.train, 1, 1, seed=0)
    (first,), targets = stream.train.batch(torch.cat([sampler.indices(0, k) for k in range(3)]))
    assert first.tolist() == [[2, 3, 4, 5], [6, 7, 8, 9], [2, 3, 4, 5]]
    assert targets.tolist() == [[3, 4, 5, END], [7, 8, 9, END], [3, 4, 5, END]]


def test_documents_held_out_are_in_no_training_block(tmp_path: Path, tokenizer: str) -> None:
    path = saved(tmp_path / "data", train=[f"a {'b ' * i}c" for i in range(40)])
    for share, held in ((0.5, 22), (0.1, 7)):
        data = loaded(path, tokenizer, valid_share=share, valid_size=10_000, block=1)
        train, valid = (
            documents([token for token, _ in all_tokens(part)])
            for part in (data, replace(data, train=data.valid))
        )
        assert len(valid) == held
        assert sorted(train + valid) == sorted(f"2{'3' * i}4" for i in range(40))


def documents(tokens: list[int]) -> list[str]:
    """Return the tokens of the documents between end tokens, each as a text."""
    return "".join(str(token) if token != END else " " for token in tokens).split()


def streamed(path: str, tokenizer: str, **more: Any) -> tuple[StreamSplit, Any]:
    """Return the training split of a stream, and its partition."""
    save_json(Path(path), ["a b"], "validation")
    options = {"streaming": True, "tokens": 40, "valid_split": "validation", "block": 1, **more}
    data = loaded(path, tokenizer, **options)
    assert isinstance(data.train, StreamSplit)
    return data.train, data.partition


def blocks(split: StreamSplit, worker: int, numbers: Iterable[int]) -> list[list[int]]:
    """Return the inputs of blocks of one of two workers."""
    samples = (split.stream(worker, 2).sample(number) for number in numbers)
    return [inputs[0].tolist() for (inputs,), _ in samples]


@pytest.mark.parametrize("files", [1, 4])
def test_nodes_read_disjoint_documents_that_are_all(
    tmp_path: Path, tokenizer: str, files: int
) -> None:
    rows = [f"{'a ' * i}h" for i in range(1, 13)]
    for number in range(files):
        path = save_json(tmp_path / "data", rows[number::files], f"train-{number}-of-{files}")
    split, _ = streamed(path, tokenizer, buffer=3)
    parts = []
    for worker in range(2):
        stream = split.stream(worker, 2)
        while not stream.whole:
            stream.read(0, len(stream.ends))
        # The last token of a window, an end, is no input.
        tokens = [token for (token,) in blocks(split, worker, range(stream.ends[-1]))]
        parts.append("".join(map(str, tokens)).replace("0", "").split("9")[:-1])
    assert [len(part) for part in parts] == [6, 6]
    assert sorted(parts[0] + parts[1]) == ["2" * i for i in range(1, 13)]


def test_a_stream_depends_only_on_seed_and_position(tmp_path: Path, tokenizer: str) -> None:
    path = save_json(tmp_path / "data", texts(30))
    splits = []
    for seed in (7, 7, 8):
        split, partition = streamed(path, tokenizer, buffer=4, block=2)
        partition.sampler(split, 2, 1, seed=seed)
        splits.append(split)
    whole = blocks(splits[0], 1, range(90))
    stream = splits[0].stream(1, 2)
    assert stream.whole and stream.ends == [12, 26, 38, 49]
    assert whole[:41] != whole[49:]
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0)).tolist()
    found = dict(zip(order, blocks(splits[1], 1, order), strict=True))
    assert [found[number] for number in range(90)] == whole
    assert blocks(splits[2], 1, range(90)) != whole


def test_a_resumed_stream_tokenizes_no_window_twice(tmp_path: Path, tokenizer: str) -> None:
    path = save_json(tmp_path / "data", texts(40))
    split, partition = streamed(path, tokenizer, buffer=4, block=2)
    sampler = partition.sampler(split, 2, 3, seed=1)
    batches = [split.batch(sampler.indices(0, step))[0][0] for step in range(12)]
    state = split.state_dict()
    assert state == {(0, 2): (split.stream(0, 2).ends, False)}
    for restored, windows in ((state, 1), ({}, 3)):
        resumed, partition = streamed(path, tokenizer, buffer=4, block=2)
        partition.sampler(resumed, 2, 3, seed=1)
        resumed.load_state_dict(restored)
        with mock.patch.object(resumed, "encode", wraps=resumed.encode) as encode:
            assert torch.equal(resumed.batch(sampler.indices(0, 11))[0][0], batches[11])
        assert encode.call_count == windows


def test_the_loss_is_of_a_token(tokenizer: str) -> None:
    task = SubwordModelling(256, 4)
    assert task.metrics([2 * 10.0], 10) == pytest.approx({"loss": 2.0, "perplexity": 7.389056})
    assert task.metrics([1e4], 1)["perplexity"] == float("inf")


# Refusals


def refused_text(path: str, tokenizer: str | None, **more: Any) -> str:
    return str(refusal(loaded, path, tokenizer, **{"block": 64, **more}))


def test_what_cannot_be_read_is_refused(tmp_path: Path, tokenizer: str) -> None:
    path = saved(tmp_path / "data", train=["a b c"] * 9)
    for more, sentence in (
        (
            {"text_key": "txt"},
            f"data.text_key: a row of {path} has no text 'txt'; it has text (str), n (int).",
        ),
        (
            {"text_key": "n"},
            f"data.text_key: a row of {path} has no text 'n'; it has text (str), n (int).",
        ),
        ({"split": "test"}, f"data.split: {path} has no 'test', only train."),
        ({"valid_split": "dev"}, f"data.split: {path} has no 'dev', only train."),
        (
            {"block": 64, "valid_share": 0.0, "valid_split": "train"},
            "data.block: the training text is shorter than 65 tokens: use a smaller block, or "
            "more text.",
        ),
        (
            {"streaming": True},
            "data.tokens: streaming needs the tokens of an epoch: data.tokens=10000000.",
        ),
    ):
        assert refused_text(path, tokenizer, **more) == sentence  # type: ignore[arg-type]
    assert refused_text("./none", tokenizer) == (
        "data.path: there is no folder './none'; write a name on the Hub without ./ in front."
    )
    assert refused_text(path, path) == (
        f"data.tokenizer: '{path}' has no tokenizer: choose one, data.tokenizer=gpt2."
    )
    (tmp_path / "empty").mkdir()
    assert refused_text(str(tmp_path / "empty"), tokenizer).startswith(
        f"data.path: the data set '{tmp_path / 'empty'}' cannot be loaded ("
    )


def test_a_node_without_text_is_an_error(tmp_path: Path, tokenizer: str) -> None:
    path = save_json(tmp_path / "data", ["a", "b"])
    split, _ = streamed(path, tokenizer, block=1, buffer=1)
    with pytest.raises(DataError, match=r"^node 2 of 3 has fewer than 2 tokens of text in any "):
        split.stream(2, 3).sample(0)


def test_without_the_hub_a_name_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, tokenizer: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    assert not reaches_hub()
    asked = hosts_asked_for(monkeypatch)
    assert refused_text("org/stories", tokenizer) == (
        "data.path: the data set 'org/stories' is not on this machine, which cannot reach the "
        "Hugging Face Hub: on a machine with network, hf download --repo-type dataset org/stories "
        "--local-dir stories; then copy the folder here and write data=hf:./stories"
    )
    assert refused_text("org/stories", "org/words") == (
        "data.tokenizer: the tokenizer 'org/words' is not on this machine, which cannot reach the "
        "Hugging Face Hub: on a machine with network, hf download org/words --local-dir words; "
        "then copy the folder here and write data.tokenizer=./words"
    )
    assert asked == ["127.0.0.1"] * 2  # once for each: the packages do not try


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tokenizer: str) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refused_text(tokenizer, tokenizer).startswith(
        "data: hf needs datasets: pip install 'sgp-runner[hf]' ("
    )


@pytest.mark.parametrize("more", [{}, {"streaming": True, "tokens": 90}])
def test_a_row_without_text_is_named(more: dict[str, Any], tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a b c"}\n{"text": null}\n{"text": 3}\n')
    assert refused_text(str(tmp_path), tokenizer, **more) == (
        f"data.text_key: a row of {tmp_path} has 3 as 'text', which is not text."
    )


# Identity


@pytest.mark.usefixtures("in_an_empty_folder")
def test_the_contents_of_folders_are_part_of_the_identity() -> None:
    save_gpt2(Path("model"))
    save_tokenizer(Path("model"))
    save_json(Path("data"), texts(30))
    overrides = ["model=hf:./model", "model.pretrained=false", "data=hf:./data"]
    first = experiment_of(overrides)
    assert first.run.data.tokenizer == "./model"  # type: ignore[attr-defined]
    checksum = first.config["data"]["sha256"]  # type: ignore[index]
    assert len(checksum) == 2 * 64 + 1
    assert first.digest == experiment_of([*overrides, f"data.sha256={checksum}"]).digest
    Path("data/.cache").mkdir()
    Path("data/.cache/downloaded").write_text("now")
    os.utime("data/train.jsonl", (1, 1))
    assert experiment_of(overrides).digest == first.digest
    save_json(Path("data"), texts(31))
    assert experiment_of(overrides).digest != first.digest
    assert refused_text("./data", "./model", sha256=checksum).startswith(
        "data.sha256: the contents of './data' have changed: their checksum is "
    )


def test_another_model_needs_a_tokenizer() -> None:
    assert str(refusal(experiment_of, ["model=gpt", "data=hf:org/stories"])) == (
        "data.tokenizer: only model=hf:... has a default tokenizer: data.tokenizer=gpt2."
    )
    run = experiment_of(["model=hf:gpt2", "data=hf:org/stories"]).run
    assert (run.data.name, run.data.tokenizer) == ("org/stories", "gpt2")  # type: ignore[attr-defined]
