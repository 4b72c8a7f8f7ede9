"""Books, as bytes and as pieces of words, from excerpts in the format of their package."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.packed import tgz
from helpers.paths import ROOT
from helpers.refusals import refusal

from sgp_runner.data.byte_pairs import BYTES, learn, words_of
from sgp_runner.data.gutenberg import SOURCE, Gutenberg
from sgp_runner.data.packaged import checksum_of
from sgp_runner.data.tasks import LanguageModelling
from sgp_runner.utils.errors import ConfigError

BOOKS = {
    "austen-emma.txt": b"the cat and the hat and the bat. " * 40,
    "blake-poems.txt": b"tyger tyger, burning bright\n" * 60,
}


@pytest.fixture
def books(tmp_path: Path) -> Gutenberg:
    files = {f"gutenberg/{name}": content for name, content in BOOKS.items()}
    path = tgz(tmp_path / "a.tgz", files | {"README.md": b"no book"})
    return Gutenberg(path=str(path), sha256=checksum_of(BOOKS), block=16, valid_share=0.1)


def test_bytes_keep_the_end_of_each_book_for_validation(books: Gutenberg) -> None:
    dataset = books.load(torch.float32)
    (tokens,), targets = dataset.train.batch(torch.tensor([0, 74]))
    assert [bytes(row.tolist()) for row in (*tokens, targets[0])] == [
        *(b"the cat and the ", b"tyger tyger, bur", b"he cat and the h")
    ]
    assert dataset.train.labels is not None
    assert dataset.train.labels.bincount().tolist() == [74, 94]  # of 1,188 and 1,512 bytes
    assert (len(dataset.valid), dataset.num_classes) == (8 + 10, 256)


def test_pieces_are_learned_from_the_training_part_and_count_their_bytes(books: Gutenberg) -> None:
    dataset = replace(books, pieces=270).load(torch.float32)
    assert dataset.num_classes == 270
    assert isinstance(dataset.task, LanguageModelling)
    size = dataset.task.token_bytes
    assert size is not None and 1 < size < 16
    assert dataset.task.metrics((math.log(2) * size,), samples=1)["bits_per_byte"] == pytest.approx(
        1, rel=1e-12
    )


def test_the_pair_that_is_most_frequent_is_merged_first() -> None:
    pairs = learn(["aab", "aab", "ab"], size=258)
    assert pairs.vocabulary[256:] == ("ab", "aab")
    assert pairs.encode(["aab", "ba", "aaab"]) == [257, 98, 97, 97, 257]


@pytest.mark.parametrize("text", ["a  b_c 12,\n\n«ß»!", "", " \t x"])
def test_words_join_to_the_text(text: str) -> None:
    words = words_of(text, "utf-8")
    assert "".join(words).encode("latin-1").decode() == text
    pieces = learn(words, 300)
    assert "".join(pieces.vocabulary[i] for i in pieces.encode(words)) == "".join(words)
    assert pieces.vocabulary[:256] == tuple(BYTES)


def test_whole_books_go_to_nodes(books: Gutenberg) -> None:
    dataset = replace(books, partition="by_document").load(torch.float32)
    sampler = dataset.partition.sampler(dataset.train, 2, 4, seed=1)
    assert dataset.train.labels is not None
    assert [set(dataset.train.labels[sampler.indices(w, 3)].tolist()) for w in (0, 1)] == [
        {1},
        {0},
    ]


def test_another_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"")
    assert refusal(Gutenberg(path=str(tmp_path)).load, torch.float32).sentence == (
        f"{tmp_path} is not gutenberg: it has no book, such as austen-emma.txt; get it with: "
        "sgp-run download gutenberg"
    )
    with pytest.raises(ConfigError, match=r"^data.pieces: must be more than the 256 bytes"):
        Gutenberg(pieces=256)


def test_the_complete_books() -> None:
    if not (ROOT / "data/gutenberg").exists():
        pytest.skip("gutenberg is not in data: sgp-run download gutenberg")
    books = SOURCE.read(str(ROOT / "data"), None, SOURCE.sha256)
    assert (len(books), sum(map(len, books.values()))) == (18, 11_793_318)
