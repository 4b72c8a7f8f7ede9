"""Documents of a data set as blocks of tokens, in memory or streamed."""

from __future__ import annotations

import importlib
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sgp_runner.data.dataset import Batch, Split
from sgp_runner.data.sampler import WINDOW_ORDER, Labelled, Partition, full_steps
from sgp_runner.data.text import BlockSplit
from sgp_runner.utils.errors import ConfigError, DataError
from sgp_runner.utils.hub import import_hub, is_folder, loading
from sgp_runner.utils.seeding import generator
from sgp_runner.utils.shard import Shard

if TYPE_CHECKING:
    from sgp_runner.data.text import Tokens

ROWS = 1000  # read at a time
TOKENIZED = 100  # texts at a time
WORKER_BITS = 16  # of an index, twice: MAX_NODES is 2**16
SAVED = ("state.json", "dataset_dict.json")  # files that save_to_disk writes
VOCABULARIES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")  # files of a tokenizer


@dataclass(frozen=True)
class Encoder:
    """Encoder that adds an end-of-text token to each text; ``tokenizer`` is from transformers."""

    tokenizer: Any

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of all texts, uint32 [N]."""
        end = self.tokenizer.eos_token_id
        more = [] if end is None else [end]
        rows: Any = (
            self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
            if texts
            else []
        )
        return np.fromiter(chain.from_iterable(row + more for row in rows), np.uint32)

    @property
    def vocabulary(self) -> int:
        """The number of distinct tokens."""
        return len(self.tokenizer)


def load_encoder(path: str) -> Encoder:
    """Load the tokenizer at ``path``. Raises ConfigError if there is none."""
    transformers = import_hub("transformers", "data")
    if is_folder(path) and not any(map(any, map(Path(path).glob, VOCABULARIES))):
        raise ConfigError(
            "data.tokenizer", f"'{path}' has no tokenizer: choose one, data.tokenizer=gpt2."
        )
    with loading("data.tokenizer", path, "tokenizer"):
        make = transformers.AutoTokenizer.from_pretrained
        return Encoder(make(path, trust_remote_code=False))  # by default it asks on stdin


def load_splits(path: str, subset: str | None, streaming: bool) -> dict[str, Any]:
    """Return the splits of a data set by name; one saved without splits is ``train``."""
    datasets = import_hub("datasets", "data")
    with loading("data.path", path, "data set"):
        if not any((Path(path) / name).is_file() for name in SAVED):
            options = {"streaming": streaming, "trust_remote_code": False}
            return dict(datasets.load_dataset(path, subset, **options))
        saved = datasets.load_from_disk(path)
        splits = dict(saved) if isinstance(saved, dict) else {"train": saved}
        return {
            name: split.to_iterable_dataset() if streaming else split
            for name, split in splits.items()
        }


def rows_of(path: str, splits: Mapping[str, Any], name: str, key: str) -> Any:
    """Return the split ``name``. Raises ConfigError if it is missing or has no text ``key``."""
    if name not in splits:
        raise ConfigError("data.split", f"{path} has no '{name}', only {', '.join(splits)}.")
    with loading("data.path", path, "data set"):
        row = next(iter(splits[name]), None)
    if row is None:
        raise ConfigError("data.split", f"the split '{name}' of {path} is empty.")
    if not isinstance(row.get(key), str):
        kinds = [f"{name} ({type(value).__name__})" for name, value in row.items()]
        raise ConfigError(
            "data.text_key", f"a row of {path} has no text '{key}'; it has {', '.join(kinds)}."
        )
    return splits[name]


def part_of(rows: Any, worker: int, workers: int) -> Any:
    """Return the rows of one worker: whole files if their number is a multiple of ``workers``."""
    distributed = importlib.import_module("datasets.distributed")
    return distributed.split_dataset_by_node(rows, worker, workers)


def texts_of(path: str, rows: Any, key: str, share: float, held_out: bool = False) -> Iterator[str]:
    """Yield the texts of ``rows`` of ``path`` in order; empty and missing ones are left out.

    share: share of the documents that are held out, by a hash of their text
    held_out: whether to yield the held-out documents instead of the others

    Raises ConfigError for a row whose value is not text.
    """
    most = share * 2**32
    for part in rows.iter(batch_size=ROWS):
        for text in part[key]:
            if not isinstance(text, str | None):
                what = f"a row of {path} has {str(text)[:40]} as '{key}', which is not text."
                raise ConfigError("data.text_key", what)
            if text and (zlib.crc32(text.encode("utf-8", "replace")) < most) == held_out:
                yield text


def packed(
    encode: Encoder, texts: Iterator[str], block: int, most_blocks: int | None = None
) -> BlockSplit:
    """Return the blocks of ``texts``, at most ``most_blocks``."""
    most = None if most_blocks is None else most_blocks * block + 1
    parts, count = [np.empty(0, np.uint32)], 0
    while (most is None or count < most) and (some := list(islice(texts, TOKENIZED))):
        parts.append(encode(some))
        count += len(parts[-1])
    return BlockSplit([np.concatenate(parts)[:most]], block)


class StreamSplit(Split):
    """Blocks that each node reads in order from its own part of the documents.

    part: maps worker and number of workers to an iterator over the worker's documents
    buffer: documents per window
    size: samples per epoch
    seed: seed of the run, set by the partition
    """

    labels = None
    seed = 0

    def __init__(
        self,
        part: Callable[[int, int], Iterator[str]],
        encode: Encoder,
        block: int,
        buffer: int,
        size: int,
    ) -> None:
        self.part, self.encode, self.block = part, encode, block
        self.buffer, self.size = buffer, size
        self.streams: dict[tuple[int, int], Stream] = {}

    @property
    def ahead(self) -> int:
        """Return 1: one process reads for all simulated nodes."""
        return 1

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        rows = [self.sample(index) for index in indices.tolist()]
        return (torch.cat([inputs for (inputs,), _ in rows]),), torch.cat([t for _, t in rows])

    def sample(self, index: int) -> Batch:
        """Return a batch with the single sample ``index`` of a `StreamSampler`."""
        workers, worker = (index >> shift & 2**WORKER_BITS - 1 for shift in (WORKER_BITS, 0))
        return self.stream(worker, workers + 1).sample(index >> 2 * WORKER_BITS)

    def stream(self, worker: int, workers: int) -> Stream:
        return self.streams.setdefault((worker, workers), Stream(self, worker, workers))

    def state_dict(self) -> dict[tuple[int, int], tuple[list[int], bool]]:
        """Return the known windows; a resumed run skips their documents without tokenizing them."""
        # A thread may read on meanwhile; it completes the windows of a pass before `whole` is true.
        windows = [(key, stream.whole, [*stream.ends]) for key, stream in [*self.streams.items()]]
        return {key: (ends, whole) for key, whole, ends in windows}

    def load_state_dict(self, state: Any) -> None:
        for key, (ends, whole) in state.items():
            stream = self.stream(*key)
            stream.ends, stream.whole = list(ends), whole


class Stream:
    """The blocks of one worker, which reads its documents repeatedly.

    Documents are shuffled and tokenized one window at a time. A window's blocks depend only on the
    seed, the worker, the pass and the window.

    ends: cumulative number of blocks at the end of each known window
    whole: whether ``ends`` covers a pass
    """

    def __init__(self, split: StreamSplit, worker: int, workers: int) -> None:
        self.split, self.worker, self.workers = split, worker, workers
        self.ends: list[int] = []
        self.whole = False
        self.present = (-1, -1)  # pass and window
        self.blocks = BlockSplit([np.empty(0, np.uint32)], split.block)
        self.texts: Iterator[str] = iter(())

    def sample(self, number: int) -> Batch:
        """Return block ``number`` as a batch of one. Raises DataError if a pass has no blocks."""
        while not self.whole and (not self.ends or number >= self.ends[-1]):
            self.read(0, len(self.ends))
        if not self.ends[-1]:
            raise DataError(
                f"node {self.worker} of {self.workers} has fewer than {self.split.block + 1} "
                "tokens of text in any window: use a smaller data.block, a larger data.buffer, or "
                "fewer nodes."
            )
        again, number = divmod(number, self.ends[-1]) if self.whole else (0, number)
        window = bisect_right(self.ends, number)
        self.read(again, window)
        first = self.ends[window - 1] if window else 0
        return self.blocks.batch(torch.tensor([number - first]))

    def read(self, again: int, window: int) -> None:
        """Load a window of a pass, unless it is the current one."""
        if self.present == (again, window):
            return
        split = self.split
        if self.present != (again, window - 1):
            self.texts = islice(split.part(self.worker, self.workers), window * split.buffer, None)
        texts = list(islice(self.texts, split.buffer))
        random = generator(split.seed, WINDOW_ORDER, self.worker, again, window)
        order = torch.randperm(len(texts), generator=random).tolist()
        self.blocks = BlockSplit([split.encode([texts[i] for i in order])], split.block)
        self.present = (again, window)
        if window == len(self.ends):
            self.ends.append(len(self.blocks) + (self.ends[-1] if self.ends else 0))
            self.whole = len(texts) < split.buffer


@dataclass(frozen=True)
class Streamed(Partition):
    """Partition in which every worker reads its own part of a stream from the beginning."""

    def sampler(self, split: Labelled, workers: int, batch_size: int, seed: int) -> StreamSampler:
        assert isinstance(split, StreamSplit)
        split.seed = seed
        return StreamSampler(workers, batch_size, full_steps(len(split), workers, batch_size))


@dataclass(frozen=True)
class StreamSampler:
    """Sampler of `Streamed`; an index encodes block number, number of workers, and worker."""

    workers: int
    batch_size: int
    steps_per_epoch: int

    def indices(self, worker: int, step: int) -> Tensor:
        blocks = torch.arange(step * self.batch_size, (step + 1) * self.batch_size)
        return (blocks << 2 * WORKER_BITS) + (self.workers - 1 << WORKER_BITS) + worker

    def weight(self, worker: int, step: int, part: Shard) -> float:
        return 1.0
