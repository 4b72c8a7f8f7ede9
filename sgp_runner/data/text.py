"""Text for language models: the user's own files, or the sources of Python's library."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sgp_runner.data.dataset import Batch, Dataset, Split
from sgp_runner.data.sampler import DocumentPartition, partition_of
from sgp_runner.data.tasks import LanguageModelling
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.files import is_hidden

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    Tokens: TypeAlias = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]

BYTES = 256
TOKENS = (".bin", ".npy")  # files of token numbers
# The headers of llm.c and modded-nanogpt: 256 numbers, of which the first three are one of these,
# the version, and the number of tokens that follow.
HEADER_BYTES = 1024
HEADERS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # version, type of a token

# Modules of the standard library that Python 3.11 to 3.14 all have.
MODULES = (
    *("_pydecimal", "_strptime", "argparse", "ast", "base64", "bdb", "bisect"),
    *("calendar", "cmd", "codecs", "configparser", "contextlib", "copy", "csv", "dataclasses"),
    *("difflib", "dis", "doctest", "enum", "filecmp", "fileinput", "fnmatch", "fractions"),
    *("ftplib", "functools", "getopt", "gettext", "glob", "gzip", "hashlib", "heapq", "hmac"),
    *("imaplib", "inspect", "ipaddress", "locale", "lzma", "mailbox", "mimetypes", "netrc"),
    *("ntpath", "numbers", "optparse", "pdb", "pickle", "pickletools", "platform", "plistlib"),
    *(
        "poplib",
        "posixpath",
        "pprint",
        "profile",
        "pstats",
        "queue",
        "random",
        "sched",
        "selectors",
    ),
    *("shelve", "shlex", "shutil", "smtplib", "socket", "socketserver", "ssl", "statistics"),
    *("stringprep", "subprocess", "symtable", "tarfile", "tempfile", "textwrap"),
    *("threading", "timeit", "tokenize", "trace", "traceback", "tracemalloc", "turtle", "types"),
    *("typing", "uuid", "warnings", "wave", "weakref", "webbrowser", "zipimport"),
)


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Documents of text; every sample is a block of ``block`` tokens.

    block: tokens per sample
    valid_share: share of each document, at its end, that is used for validation
    partition: iid = reshuffled among all nodes every epoch; dirichlet = unequal shares of the
        documents; dirichlet_equal = the same with shares of equal size;
        by_document = whole documents, for at most as many nodes
    alpha: concentration of the Dirichlet partition; smaller = fewer documents per node
    """

    block: int = 64
    valid_share: float = 0.1
    partition: DocumentPartition = "iid"
    alpha: float = 0.1

    name: ClassVar[str]
    task: ClassVar[str] = "language"

    def __post_init__(self) -> None:
        partition_of(self.partition, self.alpha)
        check_least(1, "data", self, "block")
        if not 0 < self.valid_share < 1:
            raise ConfigError(
                "data.valid_share", f"must be between 0 and 1, not {self.valid_share}."
            )


@dataclass(frozen=True)
class Text(Documents):
    """Text from the user's files; every sample is a block of ``block`` tokens.

    ``path`` is a file or a folder of text, with bytes as tokens; or a file of token ids; or a
    folder with two such files, named ``train`` and ``val``. A ``.bin`` file holds 16-bit ids in the
    format of nanoGPT or with the header of llm.c, a ``.npy`` file a one-dimensional array of
    integers. The end of a file without a ``val`` is used for validation. Files are the labels of
    the Dirichlet partition; hidden ones are left out.

    path: the file or folder
    vocabulary: number of distinct tokens in token files; null = largest token + 1; text files
        always have 256
    tokens: number of tokens per epoch; timing studies compute hours from it without reading files;
        null = unknown
    valid_share: share of each file that is used for validation; ignored if there is a val file
    """

    path: str = ""
    vocabulary: int | None = None
    tokens: int | None = None

    name: ClassVar[str] = "text"
    stand_in: ClassVar[bool] = False

    @property
    def train_size(self) -> int | None:
        """Samples per epoch; None if the number is unknown before files are read."""
        return None if self.tokens is None else self.tokens // self.block

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens is not None and self.tokens < self.block:
            raise ConfigError("data.tokens", f"{self.tokens} do not fill a block of {self.block}.")
        if not self.path:
            raise ConfigError(
                "data.path", "give a file or a folder: data.path=book.txt; or use data=grammar."
            )

    def load(self, dtype: torch.dtype) -> Dataset:
        """Read the files as integer tokens, so ``dtype`` has no effect."""
        path = Path(self.path)
        kinds = [kind for kind in TOKENS if (path / f"train{kind}").is_file()]
        if kinds:
            train, valid = (tokens_of(path / f"{name}{kinds[0]}") for name in ("train", "val"))
            return self.of_tokens(train, valid)
        if path.suffix in TOKENS and path.is_file():
            tokens = tokens_of(path)
            cut = round(len(tokens) * (1 - self.valid_share))
            return self.of_tokens(tokens[:cut], tokens[cut:])
        if self.vocabulary not in (None, BYTES):
            raise ConfigError("data.vocabulary", "text is read as bytes: leave it out.")
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file() and not is_hidden(str(file.relative_to(path)))
        ]
        files = files or [path]
        return bytes_of(self, files, self.valid_share)

    def of_tokens(self, train: Tokens, valid: Tokens) -> Dataset:
        largest = max(int(part.max(initial=0)) for part in (train, valid))
        if self.vocabulary is not None and largest >= self.vocabulary:
            raise ConfigError("data.vocabulary", f"the files contain token {largest}: use more.")
        return dataset_of(self, [train], [valid], self.vocabulary or 1 + largest)


@dataclass(frozen=True)
class PythonText(Documents):
    """The sources of modules of Python's standard library, as bytes.

    The sources differ between Python releases, so results are comparable only within a release.
    """

    name: ClassVar[str] = "python_text"
    stand_in: ClassVar[bool] = True
    train_size: ClassVar[None] = None

    def load(self, dtype: torch.dtype) -> Dataset:
        """Read the files as integer tokens, so ``dtype`` has no effect."""
        library = Path(sysconfig.get_path("stdlib"))
        files = (library / f"{name}.py" for name in MODULES)
        return bytes_of(self, [file for file in files if file.is_file()], self.valid_share)


def bytes_of(data: Text | PythonText, files: Sequence[Path], valid_share: float) -> Dataset:
    """Return a data set of the bytes in ``files``; the end of each is used for validation."""
    import numpy as np

    train, valid = [], []
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ConfigError("data.path", f"cannot read {file}: {error.strerror}.") from error
        if (place := content.find(0)) >= 0:
            raise ConfigError(
                "data.path",
                f"{file} is not text: byte {place} is 0; save text as UTF-8; for tokens, give one "
                "file, or a folder with train.bin and val.bin.",
            )
        tokens = np.frombuffer(content, np.uint8)
        cut = round(len(tokens) * (1 - valid_share))
        train.append(tokens[:cut])
        valid.append(tokens[cut:])
    return dataset_of(data, train, valid, BYTES)


def tokens_of(path: Path) -> Tokens:
    """Return the tokens of a file, mapped into memory. Raises ConfigError if they are invalid."""
    import numpy as np

    try:
        if path.suffix == ".bin":
            return tokens_after_header(path)
        tokens: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError("data.path", f"cannot read {path}: {error}.") from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise ConfigError(
            "data.path", f"{path} has {tokens.dtype} {list(tokens.shape)}, not integers [N]."
        )
    if tokens.dtype.kind == "i" and (least := int(tokens.min(initial=0))) < 0:
        raise ConfigError("data.path", f"{path} has the token {least}: tokens count from 0.")
    return tokens


def tokens_after_header(path: Path) -> Tokens:
    """Return the tokens of a ``.bin`` file, which may have one of `HEADERS`."""
    import numpy as np

    with path.open("rb") as file:
        header = np.frombuffer(file.read(HEADER_BYTES), np.uint8)
    fields = header.view("<i4").tolist() if len(header) == HEADER_BYTES else [0]
    if fields[0] not in HEADERS:
        return np.memmap(path, np.uint16, "r")
    (version, kind), size = HEADERS[fields[0]], path.stat().st_size - HEADER_BYTES
    if fields[1] != version:
        raise ValueError(f"its header has version {fields[1]}, not {version}")
    if fields[2] * np.dtype(kind).itemsize != size:
        promised = f"{fields[2]} tokens of {kind}"
        raise ValueError(f"its header declares {promised}, but {size} bytes follow")
    return np.memmap(path, kind, "r", HEADER_BYTES)


def dataset_of(
    data: Documents,
    train: Sequence[Tokens],
    valid: Sequence[Tokens],
    vocabulary: int,
    lengths: Sequence[int] | None = None,
) -> Dataset:
    """Return the data set of the training and validation texts.

    lengths: number of bytes of each token, if known
    """
    splits = BlockSplit(train, data.block), BlockSplit(valid, data.block)
    check_filled(*splits, data.block)
    return Dataset(
        name=data.name,
        task=LanguageModelling(
            vocabulary, data.block, token_bytes=splits[1].mean_length(lengths) if lengths else None
        ),
        train=splits[0],
        valid=splits[1],
        input_shape=(data.block,),
        num_classes=vocabulary,
        partition=partition_of(data.partition, data.alpha),
    )


def check_filled(train: Split, valid: Split, block: int) -> None:
    """Raise ConfigError if one of the splits has no blocks."""
    for split, what in ((train, "training"), (valid, "validation")):
        if not len(split):
            raise ConfigError(
                "data.block",
                f"the {what} text is shorter than {block + 1} tokens: "
                "use a smaller block, or more text.",
            )


class BlockSplit(Split):
    """Consecutive blocks of several texts, without overlap.

    A block's targets are its tokens shifted by one. Tokens that do not fill a block are left out.
    """

    def __init__(self, texts: Sequence[Tokens], block: int) -> None:
        import torch

        self.texts, self.block = texts, block
        counts = torch.tensor([max(0, (len(text) - 1) // block) for text in texts])
        self.labels = torch.arange(len(texts)).repeat_interleave(counts)
        self.starts = counts.cumsum(0) - counts  # the first block of each text

    def __len__(self) -> int:
        return len(self.labels)

    def mean_length(self, lengths: Sequence[int]) -> float:
        """Return the mean over all targets of ``lengths``, the number of bytes of each token."""
        import numpy as np

        table, count = np.asarray(lengths), len(self) * self.block
        targets = (text[1 : 1 + (len(text) - 1) // self.block * self.block] for text in self.texts)
        return sum(int(table[part].sum()) for part in targets) / count

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        import numpy as np
        import torch

        texts = self.labels[indices]
        places = (indices - self.starts[texts]) * self.block
        rows = [
            self.texts[text][place : place + self.block + 1]
            for text, place in zip(texts.tolist(), places.tolist(), strict=True)
        ]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
        return (tokens[:, :-1],), tokens[:, 1:]
