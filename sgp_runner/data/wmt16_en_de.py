"""WMT'16, English to German: 4.5 million sentence pairs, as prepared for Ott et al. (2018)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.data.dataset import Dataset, check_shares
from sgp_runner.utils.errors import ConfigError, check_least
from sgp_runner.utils.extras import require

if TYPE_CHECKING:
    import torch

# Google's preprocessed text, as in fairseq's examples/scaling_nmt.
ADDRESS = "https://drive.google.com/uc?export=download&id=0B_bZck-ksdkpM25jRUN2X2UxMm8"


@dataclass(frozen=True)
class WMT16EnDe:
    """WMT'16, or any English-German text binarised by ``fairseq-preprocess``.

    root: folder that contains dict.en.txt, train.en-de.en.bin and so on; not part of a run's name
    max_tokens: maximum number of tokens per language, including padding, in a batch of one node;
        batch_size limits only the number of sentences
    required_batch_size_multiple: divisor of the number of sentences in a batch, unless the batch
        has fewer sentences
    label_smoothing: share of the target's probability that is spread over the vocabulary
    evaluate_on: valid (newstest2013) | test (newstest2014)
    beam: beam size at evaluation
    length_penalty: length exponent of the beam search; below 1 favours short translations
    """

    root: str = "data/wmt16_en_de"
    max_tokens: int = 3584
    required_batch_size_multiple: int = 8
    label_smoothing: float = 0.1
    evaluate_on: Literal["valid", "test"] = "valid"
    beam: int = 4
    length_penalty: float = 0.6

    name: ClassVar[str] = "wmt16_en_de"
    task: ClassVar[str] = "fairseq_translation"
    source: ClassVar[str] = "bojar2016"
    stand_in: ClassVar[bool] = False
    train_size: ClassVar[int | None] = None  # batches are of tokens

    def __post_init__(self) -> None:
        check_shares("data", self, label_smoothing=0.1)
        check_least(1, "data", self, "max_tokens", "required_batch_size_multiple", "beam")

    def load(self, dtype: torch.dtype) -> Dataset:
        """Load the integer tokens, so ``dtype`` has no effect."""
        from sgp_runner.data.with_fairseq import (
            BeamTranslation,
            SentencePairs,
            TokenBatches,
            load_pairs,
        )

        root = Path(self.root)
        texts = [
            f"{split}.en-de.{language}.idx"
            for split in ("train", self.evaluate_on)
            for language in ("en", "de")
        ]
        if missing := [
            name for name in ("dict.en.txt", "dict.de.txt", *texts) if not (root / name).exists()
        ]:
            raise ConfigError(
                "data.root",
                f"there is no binarised WMT'16 at {root}, where {missing[0]} should be: "
                f"get wmt16_en_de.tar.gz from {ADDRESS} and binarise it with "
                "scripts/prepare_wmt16.sh, or set data.root; model=transformer data=numbers_en_de "
                "needs no files.",
            )
        train, valid = (
            load_pairs(root, split, "en", "de", shuffle=split == "train")
            for split in ("train", self.evaluate_on)
        )
        require("data", "text", "sacrebleu")
        return Dataset(
            name=self.name,
            task=BeamTranslation(
                train.src_dict,
                train.tgt_dict,
                self.label_smoothing,
                self.beam,
                self.length_penalty,
                self.max_tokens,
            ),
            train=SentencePairs(train),
            valid=SentencePairs(valid),
            input_shape=(int(train.src_sizes.max()),),
            num_classes=len(train.tgt_dict),
            partition=TokenBatches(self.max_tokens, self.required_batch_size_multiple),
        )
