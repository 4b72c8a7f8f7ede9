"""Parallel text through fairseq: dictionaries, binarised data, batches, loss, beam search."""

from __future__ import annotations

import importlib
import logging
import struct
import warnings
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sgp_runner.data.dataset import Batch, Split
from sgp_runner.data.sampler import Labelled, TokenSampler
from sgp_runner.data.tasks import on_device
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import install
from sgp_runner.utils.seeding import seed_of

LONGEST = 1024  # tokens per sentence, fairseq's default; longer sentences are left out of training
_BATCHES = 301  # stream of random numbers


def import_fairseq(module: str = "fairseq") -> ModuleType:
    """Import a module of fairseq without side effects.

    The import changes Hydra's configuration store and the root logger; both are restored.
    """
    from hydra.core.config_store import ConfigStore

    store, root, quiet = ConfigStore.instance(), logging.getLogger(), logging.NullHandler()
    before = deepcopy(store.repo)
    root.addHandler(quiet)  # where there is a handler, ``logging.basicConfig`` does nothing
    try:
        importlib.import_module("fairseq")
        # fairseq's masks are of two types.
        warnings.filterwarnings("ignore", "Support for mismatched key_padding_mask", UserWarning)
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "data",
            f"wmt16_en_de needs fairseq: {install('fairseq')}, which compiles it with a C++ "
            f"compiler in some minutes ({error}).",
        ) from error
    finally:
        root.removeHandler(quiet)
        store.repo = before


def load_pairs(root: Path, split: str, source: str, target: str, shuffle: bool) -> Any:
    """Load the split ``split`` of binarised data as fairseq's LanguagePairDataset.

    Raises ConfigError if a file is damaged or has tokens missing from its dictionary.
    """
    dictionaries = [
        load_dictionary(root, f"{split}.{source}-{target}", language)
        for language in (source, target)
    ]
    return import_fairseq("fairseq.tasks.translation").load_langpair_dataset(
        str(root),
        split,
        source,
        dictionaries[0],
        target,
        dictionaries[1],
        combine=False,
        dataset_impl="mmap",
        upsample_primary=1,
        left_pad_source=True,
        left_pad_target=False,
        max_source_positions=LONGEST,
        max_target_positions=LONGEST,
        shuffle=shuffle,
    )


def load_dictionary(root: Path, text: str, language: str) -> Any:
    """Load the dictionary of one language and check that it contains all tokens of ``text``."""
    import_fairseq("fairseq.data")
    index = importlib.import_module("fairseq.data.indexed_dataset").MMapIndexedDataset.Index
    vocabulary, path = root / f"dict.{language}.txt", root / f"{text}.{language}"
    try:
        dictionary = importlib.import_module("fairseq.data").Dictionary.load(str(vocabulary))
        entry = index(f"{path}.idx")
        tokens = np.memmap(f"{path}.bin", entry.dtype, "r")
        if len(tokens) != entry.sizes.sum():
            raise ValueError(f"{len(tokens)} tokens instead of {entry.sizes.sum()}")
        least, largest = int(tokens.min()), int(tokens.max())
        if least < 0 or largest >= len(dictionary):
            what = f"tokens {least} to {largest}, but {vocabulary.name} has {len(dictionary)}"
            raise ValueError(what)
    except (AssertionError, KeyError, OSError, ValueError, struct.error) as error:
        raise ConfigError(
            "data.root", f"{path}.bin does not fit its .idx and {vocabulary.name}: {error}."
        ) from error
    return dictionary


@dataclass(frozen=True)
class SentencePairs(Split):
    """Sentence pairs of fairseq.

    pairs: a LanguagePairDataset

    Inputs are (source [B, S], source lengths [B], target_in [B, T]) and targets are [B, T], all
    int64.
    """

    pairs: Any

    labels: None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        """Return the sentences at ``indices``, the longest source first."""
        sample = self.pairs.collater([self.pairs[i] for i in indices.tolist()])
        inputs = sample["net_input"]
        names = ("src_tokens", "src_lengths", "prev_output_tokens")
        return tuple(inputs[name] for name in names), sample["target"]

    def batches(
        self, max_tokens: int, max_sentences: int | None, multiple: int, seed: int
    ) -> tuple[Tensor, ...]:
        """Return batches (int64 [B]) of sentences of similar length, as planned by fairseq.

        Each language of a batch has at most ``max_tokens`` tokens, including padding. The number of
        sentences is a multiple of ``multiple``, or less than ``multiple``. ``seed`` determines the
        order of sentences of equal length.
        """
        utils = import_fairseq("fairseq.data.data_utils")
        with utils.numpy_seed(seed % 2**32):
            order = self.pairs.ordered_indices()
        order, _ = self.pairs.filter_indices_by_size(order, (LONGEST, LONGEST))
        sizes = self.pairs.num_tokens_vec(order).astype("int64")
        longest = int(sizes.max(initial=0))
        if longest > max_tokens:
            short = f"a batch of {max_tokens} tokens is too small for the longest sentence"
            raise ConfigError("data.max_tokens", f"{short}: use {longest} or more.")
        plan = utils.batch_by_size(
            order, self.pairs.num_tokens, sizes, max_tokens, max_sentences, multiple
        )
        return tuple(torch.from_numpy(batch) for batch in plan)


@dataclass(frozen=True)
class TokenBatches:
    """Partition into the batches of `TokenSampler`; ``batch_size`` limits their sentences."""

    max_tokens: int
    multiple: int

    def sampler(self, split: Labelled, workers: int, batch_size: int, seed: int) -> TokenSampler:
        assert isinstance(split, SentencePairs)
        batches = split.batches(self.max_tokens, batch_size, self.multiple, seed_of(seed, _BATCHES))
        if len(batches) < workers:
            raise ConfigError(
                "data.max_tokens",
                f"{len(split)} sentences make {len(batches)} batches of up to {self.max_tokens} "
                f"tokens, which are not enough for {workers} nodes: "
                "use fewer tokens, or fewer nodes.",
            )
        return TokenSampler(batches, torch.from_numpy(split.pairs.tgt_sizes), workers, seed)


@dataclass(frozen=True)
class BeamTranslation:
    """fairseq's label-smoothed cross-entropy per target token, beam search and sacreBLEU.

    Outputs are logits [B, T, vocabulary]. ``source`` and ``target`` are fairseq dictionaries. BLEU
    is computed on tokenised text with word pieces joined, as in the papers on WMT'16; sacreBLEU
    does not tokenise it again.
    """

    source: Any
    target: Any
    label_smoothing: float
    beam: int
    length_penalty: float
    max_tokens: int

    name: ClassVar[str] = "fairseq_translation"
    metric: ClassVar[str] = "bleu"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        total, _, tokens = self.loss_sums(outputs, targets)
        return total / tokens

    def loss_sums(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums of smoothed loss and negative log-likelihood, and the token count."""
        criterion = import_fairseq("fairseq.criterions.label_smoothed_cross_entropy")
        log_p = outputs.log_softmax(-1).flatten(0, 1)
        smoothed, nll = criterion.label_smoothed_nll_loss(
            log_p, targets.flatten(), self.label_smoothing, self.target.pad()
        )
        return smoothed, nll, (targets != self.target.pad()).sum()

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        """Return label-smoothed "loss" and "nll", both per target token, and "bleu"."""
        from sacrebleu import corpus_bleu

        assert isinstance(split, SentencePairs)
        generator = import_fairseq("fairseq.sequence_generator").SequenceGenerator(
            [module.model], self.target, beam_size=self.beam, len_penalty=self.length_penalty
        )
        sums = [0.0, 0.0, 0.0]
        answers, references = [], []
        parts = split.batches(self.max_tokens, None, 1, 0)
        for (source, lengths, target_in), targets in on_device(module, split, parts):
            added = self.loss_sums(module(source, lengths, target_in), targets)
            sums = [before + float(part) for before, part in zip(sums, added, strict=True)]
            inputs = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": target_in}
            answers += [
                self.text(hypotheses[0]["tokens"])
                for hypotheses in generator.generate([module.model], {"net_input": inputs})
            ]
            references += [self.text(row, escape_unk=True) for row in targets]
        loss, nll, tokens = sums
        return {
            "loss": loss / tokens,
            "nll": nll / tokens,
            "bleu": corpus_bleu(answers, [references], tokenize="none", force=True).score,
        }

    def text(self, ids: Tensor, escape_unk: bool = False) -> str:
        """Decode ``ids`` to a sentence; ``escape_unk`` prevents unknown words from matching."""
        tokens = ids.cpu()
        text: str = self.target.string(
            tokens[tokens != self.target.pad()], "@@ ", escape_unk=escape_unk
        )
        return text
