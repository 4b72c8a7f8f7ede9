"""English-German sentences of LibreOffice's help, aligned by the ids of paragraphs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from sgp_runner.data.byte_pairs import BYTES, learn, words_of
from sgp_runner.data.dataset import Dataset, TensorSplit, check_shares, held_out
from sgp_runner.data.packaged import ROOT, PackagedData
from sgp_runner.data.sampler import DocumentPartition, partition_of
from sgp_runner.data.tasks import PieceTranslation
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.extras import require
from sgp_runner.utils.seeding import generator

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Row: TypeAlias = tuple[str, str, str]  # page, English sentence, German sentence
    Sides: TypeAlias = list[list[int]]  # the pieces of sentences

PAIRS = "pairs.tsv"
LANGUAGES = ("en-US", "de")
PARAGRAPH = re.compile(r'<(p|h[1-6]|td|div|span)\b[^>]*?\bid="([^"]+)"[^>]*>(.*?)</\1>', re.DOTALL)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-ZÄÖÜ0-9])")
MIN_WORDS, MAX_WORDS, RATIO = 3, 60, 2  # of a sentence; largest ratio of the lengths of a pair
PAD, BOS, EOS = 0, 1, 2
_SPLIT_SEED = 84  # the pages are the same whatever the run's seed
MPL = """\
English and German sentences of LibreOffice's help: Copyright 2000, 2010 Oracle and/or its
affiliates, 2000, 2010 LibreOffice contributors and/or their affiliates. Mozilla Public License
2.0: https://www.mozilla.org/MPL/2.0/. The sources are those of LibreOffice.
"""


def complete(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the file of sentence pairs, extracted from the pages of both languages if missing.

    Raises ValueError if a language is missing.
    """
    if PAIRS in files:
        return {PAIRS: files[PAIRS]}
    english, german = (pages_of(files, language) for language in LANGUAGES)
    rows = {
        pair: page
        for page in sorted(english.keys() & german.keys(), reverse=True)  # the first page counts
        for pair in pairs_of(english[page], german[page])
    }
    lines = sorted("\t".join((page, *pair)) + "\n" for pair, page in rows.items())
    return {PAIRS: "".join(lines).encode()}


def pages_of(files: Mapping[str, bytes], language: str) -> dict[str, dict[str, str]]:
    """Return the text of each paragraph by page and id. Raises ValueError if there are none."""
    pages = {
        name.removeprefix(f"{language}/text/"): paragraphs_of(data.decode())
        for name, data in files.items()
        if name.startswith(f"{language}/")
    }
    if not pages:
        raise ValueError(f"it has no pages in {language} (expected in {language}/text/)")
    return pages


def paragraphs_of(html: str) -> dict[str, str]:
    """Return the text of each element by id; if an id repeats, the first element counts.

    Anything in angle brackets after entities are resolved is removed.
    """
    texts = [(key, unescape(text)) for _, key, text in PARAGRAPH.findall(html)]
    return {key: " ".join(re.sub("<[^>]+>", "", text).split()) for key, text in reversed(texts)}


def pairs_of(english: Mapping[str, str], german: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of a page, from paragraphs with the same id.

    A paragraph is one pair if its numbers of sentences differ. Identical, short and long sentences
    are left out, as are pairs in which one side is more than ``RATIO`` times as long as the other.
    """
    for key in english.keys() & german.keys():
        paragraph = english[key], german[key]
        parts = [SENTENCE_END.split(text) for text in paragraph]
        agree = len(parts[0]) == len(parts[1]) and paragraph[0] != paragraph[1]
        for pair in zip(*parts, strict=True) if agree else [paragraph]:
            least, most = sorted(len(text.split()) for text in pair)
            if pair[0] != pair[1] and least >= MIN_WORDS and most <= min(MAX_WORDS, RATIO * least):
                yield pair


SOURCE = PackagedData(
    name="help_en_de",
    client="apt-get",
    packages=("libreoffice-help-en-us", "libreoffice-help-de"),
    installed="/usr/share/libreoffice/help",
    files=re.compile(rf"(?:\b(?:{'|'.join(LANGUAGES)})/text/.+\.html|{PAIRS})$"),
    sha256="957b715de2fffb4ea30daf5e55557d00630729827bcc60b7769eaab5ff614527",
    licence=MPL,
    complete=complete,
)


@dataclass(frozen=True)
class HelpEnDe:
    """Sentences of a manual, English to German; the metric is BLEU on held-out pages.

    Sentences that also occur in the training set are left out of the validation set. Pages are the
    labels of the partitions.

    root: folder that contains help_en_de/; not part of a run's name
    path: folder with the two packages or their files, or pairs.tsv of an earlier download; null:
        root, or the folder where the packages are installed; not part of a run's name
    sha256: checksum of the pairs; null: that of the packages of Debian 12
    pieces: size of the vocabulary of subword pieces, shared by both languages and learned from the
        training set
    max_words: maximum number of words per sentence, up to 60
    max_pieces: maximum number of pieces per sentence, to which all are padded; longer pairs are
        left out; null: no limit
    valid_pages: number of held-out pages
    label_smoothing: share of the target's probability that is spread over the vocabulary
    partition: iid = reshuffled among all nodes every epoch; dirichlet = unequal shares of the
        pages; dirichlet_equal = the same with shares of equal size; by_document = whole pages
    alpha: concentration of the Dirichlet partition; smaller = fewer pages per node
    holdout: share of the training set that replaces the validation set while settings are chosen;
        0 = the validation set
    """

    root: str = ROOT
    path: str | None = None
    sha256: str | None = None
    pieces: int = 2000
    max_words: int = MAX_WORDS
    max_pieces: int | None = None
    valid_pages: int = 100
    label_smoothing: float = 0.1
    partition: DocumentPartition = "iid"
    alpha: float = 0.1
    holdout: float = 0.0

    name: ClassVar[str] = "help_en_de"
    task: ClassVar[str] = "translation"
    stand_in: ClassVar[bool] = False
    train_size: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_shares("data", self, label_smoothing=0.1, holdout=0.2)
        partition_of(self.partition, self.alpha)
        check_least(MIN_WORDS, "data", self, "max_words")
        check_least(len(BYTES) + EOS + 2, "data", self, "pieces")
        check_least(1, "data", self, "valid_pages", "max_pieces")
        if self.sha256 is None:
            object.__setattr__(self, "sha256", SOURCE.sha256)

    def load(self, dtype: torch.dtype) -> Dataset:
        """Read the sentences as integer tokens, so ``dtype`` has no effect."""
        require("data", "text", "sacrebleu")
        train, valid, vocabulary = splits_of(
            *(self.root, self.path, self.sha256, self.pieces),
            *(self.max_words, self.max_pieces or sys.maxsize, self.valid_pages),
        )
        dataset = Dataset(
            name=self.name,
            task=PieceTranslation(PAD, BOS, EOS, vocabulary, self.label_smoothing),
            train=train,
            valid=valid,
            input_shape=(train.inputs[0].shape[1],),
            num_classes=len(vocabulary),
            partition=partition_of(self.partition, self.alpha),
        )
        return held_out(dataset, self.holdout)


@lru_cache(maxsize=1)  # for all runs of a process
def splits_of(
    root: str,
    path: str | None,
    sha256: str | None,
    pieces: int,
    max_words: int,
    max_pieces: int,
    valid_pages: int,
) -> tuple[TensorSplit, TensorSplit, tuple[str, ...]]:
    """Return the training sentences, the validation sentences and the vocabulary."""
    rows = rows_of(SOURCE.read(root, path, sha256)[PAIRS])
    pages, held = sorted({page for page, *_ in rows}), held_pages(rows, valid_pages)
    rows = [row for row in rows if max(len(text.split()) for text in row[1:]) <= max_words]
    train = [row for row in rows if row[0] not in held]
    seen = {english for _, english, _ in train}
    valid = [row for row in rows if row[0] in held and row[1] not in seen]
    if not train or not valid:
        raise ConfigError(
            "data.max_words", f"no page has sentences of up to {max_words} words: use more, or 60."
        )
    words = {text: words_of(text, "utf-8") for row in train for text in row[1:]}
    learned = learn((word for row in train for text in row[1:] for word in words[text]), pieces - 3)

    def encoded(text: str) -> list[int]:
        return [i + EOS + 1 for i in learned.encode(words_of(text, "utf-8"))]

    parts = [
        [
            (row, sides)
            for row in part
            if max(map(len, sides := [encoded(text) for text in row[1:]])) <= max_pieces
        ]
        for part in (train, valid)
    ]
    if not all(parts):
        raise ConfigError(
            "data.max_pieces", f"no sentence has {max_pieces} pieces or fewer: use more, or null."
        )
    texts = [[[sides[i] for _, sides in part] for i in (0, 1)] for part in parts]
    lengths = [max(map(len, part[side])) for side in (0, 1) for part in texts]
    source, target = max(lengths[:2]), max(lengths[2:]) + 1
    splits = [
        TensorSplit(
            (padded(part[0], source), padded([[BOS, *ids] for ids in part[1]], target)),
            padded([[*ids, EOS] for ids in part[1]], target),
            labels([row for row, _ in chosen], pages),
        )
        for part, chosen in zip(texts, parts, strict=True)
    ]
    return splits[0], splits[1], ("<pad>", "<bos>", "<eos>", *learned.vocabulary)


def rows_of(pairs: bytes) -> list[Row]:
    """Return page, English and German of each line. Raises ConfigError for a malformed line."""
    rows: list[Row] = []
    for number, line in enumerate(pairs.decode(errors="replace").splitlines(), 1):
        match line.split("\t"):
            case [page, english, german] if english and german:
                rows.append((page, english, german))
            case parts:
                raise ConfigError(
                    "data.path",
                    f"line {number} of {PAIRS} has {len(parts)} of 3 columns (page, English, "
                    "German, each with text): repair or download it again.",
                )
    return rows


def held_pages(rows: Sequence[Row], count: int) -> set[str]:
    """Return ``count`` pages, drawn at random with a fixed seed."""
    import torch

    pages = sorted({page for page, *_ in rows})
    if count >= len(pages):
        raise ConfigError("data.valid_pages", f"there are only {len(pages)} pages: use fewer.")
    order = torch.randperm(len(pages), generator=generator(_SPLIT_SEED))
    return {pages[i] for i in order[:count].tolist()}


def labels(rows: Sequence[Row], pages: Sequence[str]) -> Tensor:
    """Return the page index of each row, int64 [N]."""
    import torch

    numbers = {page: number for number, page in enumerate(pages)}
    return torch.tensor([numbers[page] for page, *_ in rows])


def padded(rows: Sides, length: int) -> Tensor:
    """Return ``rows`` as int64 [N, length], so that all batches have the same shape."""
    import torch

    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])
