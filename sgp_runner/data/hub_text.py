"""Text of Hugging Face data sets, by name or from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset, check_shares
from sgp_runner.data.sampler import IID
from sgp_runner.data.tasks import SubwordModelling
from sgp_runner.data.text import check_filled
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.hub import checked_folder, folder_hash, is_folder, short_name

if TYPE_CHECKING:
    import torch

TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.tiktoken")


@dataclass(frozen=True)
class HubText:
    """Text of a Hugging Face data set, packed into blocks of tokens.

    Documents follow each other, each with the tokenizer's end-of-text token if it has one. A sample
    is a block of ``block`` tokens, which may span documents. In memory, every process tokenizes all
    text before training, and the blocks are dealt to the nodes in a new order every epoch. With
    ``streaming``, a node reads and tokenizes its own part of the documents, ``buffer`` at a time.

    path: name on the Hub, or a folder with json, txt, parquet or csv files or written by
        save_to_disk
    subset: configuration, for a data set with several
    split: split to train on
    valid_split: split to validate on; null: the documents that a hash of their text selects, which
        are left out of training
    text_key: key of the text in a row
    tokenizer: name on the Hub, or a folder; null: the model's
    block: tokens of a sample
    tokens: tokens per epoch; required for streaming, otherwise used only by timing studies
    valid_share: share of the documents used for validation if valid_split is null
    valid_size: maximum number of validation samples
    streaming: whether text is read during training instead of before it
    buffer: documents that a node shuffles at a time when streaming; tokens at their end that do not
        fill a block are left out
    sha256: required checksum of the folders of data and tokenizer; null: any; recorded in
        config.yaml
    """

    path: str = ""
    subset: str | None = None
    split: str = "train"
    valid_split: str | None = None
    text_key: str = "text"
    tokenizer: str | None = None
    block: int = 64
    tokens: int | None = None
    valid_share: float = 0.05
    valid_size: int = 256
    streaming: bool = False
    buffer: int = 1000
    sha256: str | None = None

    task: ClassVar[str] = "language"
    stand_in: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.path:
            example = "data=hf:roneneldan/TinyStories, or data=hf:./folder"
            raise ConfigError("data.path", f"give a data set or a folder: {example}.")
        check_least(1, "data", self, "block", "valid_size", "buffer")
        check_shares("data", self, valid_share=0.05)
        if self.tokens is not None and self.tokens < self.block:
            raise ConfigError("data.tokens", f"{self.tokens} do not fill a block of {self.block}.")
        if self.streaming and self.tokens is None:
            raise ConfigError(
                "data.tokens", "streaming needs the tokens of an epoch: data.tokens=10000000."
            )
        if self.sha256 is None and self.tokenizer is not None:
            object.__setattr__(self, "sha256", self.checksum)

    @property
    def name(self) -> str:
        """The name on the Hub, or the name of the folder."""
        return short_name(self.path)

    @property
    def train_size(self) -> int | None:
        """Samples per epoch; None if the number is unknown before the text is read."""
        return None if self.tokens is None else self.tokens // self.block

    @property
    def checksum(self) -> str | None:
        """The checksum of the data and tokenizer folders; None if neither is a folder."""
        hashes = []
        if is_folder(self.path):
            hashes.append(folder_hash(checked_folder("data.path", self.path)))
        if self.tokenizer is not None and is_folder(self.tokenizer):
            folder = checked_folder("data.tokenizer", self.tokenizer)
            hashes.append(folder_hash(folder, TOKENIZER_FILES))
        return ".".join(hashes) or None

    def with_tokenizer(self, model: str | None) -> HubText:
        """Return these settings with a tokenizer, by default that of ``model``.

        model: name or folder of a Hugging Face model; None for other models
        """
        if self.tokenizer is None and model is None:
            raise ConfigError(
                "data.tokenizer", "only model=hf:... has a default tokenizer: data.tokenizer=gpt2."
            )
        return replace(self, tokenizer=self.tokenizer or model)

    def load(self, dtype: torch.dtype) -> Dataset:
        """Read the text as integer tokens, so ``dtype`` has no effect."""
        from sgp_runner.data import documents

        if self.sha256 is not None and self.sha256 != self.checksum:
            raise ConfigError(
                "data.sha256",
                f"the contents of '{self.path}' have changed: their checksum is {self.checksum}.",
            )
        assert self.tokenizer is not None  # a run has set it
        encode = documents.load_encoder(self.tokenizer)
        splits = documents.load_splits(self.path, self.subset, self.streaming)
        rows, held = (
            documents.rows_of(self.path, splits, name, self.text_key)
            for name in (self.split, self.valid_split or self.split)
        )
        has_split = self.valid_split is not None
        share = 0.0 if has_split else self.valid_share
        validation = documents.texts_of(
            self.path, held, self.text_key, share, held_out=not has_split
        )

        def texts(worker: int, workers: int) -> Iterator[str]:
            part = documents.part_of(rows, worker, workers) if self.streaming else rows
            return documents.texts_of(self.path, part, self.text_key, share)

        size = self.train_size or 0
        train = (
            documents.StreamSplit(texts, encode, self.block, self.buffer, size)
            if self.streaming
            else documents.packed(encode, texts(0, 1), self.block)
        )
        valid = documents.packed(encode, validation, self.block, self.valid_size)
        check_filled(train, valid, self.block)
        return Dataset(
            name=self.name,
            task=SubwordModelling(encode.vocabulary, self.block),
            train=train,
            valid=valid,
            input_shape=(self.block,),
            num_classes=encode.vocabulary,
            partition=documents.Streamed() if self.streaming else IID(),
        )
