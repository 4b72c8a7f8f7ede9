"""Generated text, English to German: numbers, ordinals, dates, times and amounts in words."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import (
    Dataset,
    TensorSplit,
    check_shares,
    held_out,
)
from sgp_runner.data.label_settings import Partitioned
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Translation
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.extras import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_TEXT_SEED = 999_999  # the sentences are the same whatever the run's seed


@dataclass(frozen=True)
class NumbersEnDe(Partitioned):
    """Numbers in words: "twenty-three" -> "dreiundzwanzig".

    No English or German sentence occurs twice, so no validation sentence is in the training set.
    A sentence's kind (number, ordinal, date, time, amount) is its class in a partition.

    train_size: number of training pairs
    valid_size: number of validation pairs
    label_smoothing: share of the target's probability that is spread over the vocabulary
    holdout: share of the training set that replaces the validation set while settings are chosen;
        0 = the validation set
    """

    train_size: int = 16384
    valid_size: int = 512
    label_smoothing: float = 0.1
    holdout: float = 0.0

    name: ClassVar[str] = "numbers_en_de"
    task: ClassVar[str] = "translation"
    stand_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shares("data", self, label_smoothing=0.1, holdout=0.2)
        super().__post_init__()
        for field in ("train_size", "valid_size"):
            if not 1 <= getattr(self, field) <= 500_000:
                raise ConfigError(
                    f"data.{field}", f"must be between 1 and 500000, not {getattr(self, field)}."
                )

    def load(self, dtype: torch.dtype) -> Dataset:
        """Generate the sentences as integer tokens, so ``dtype`` has no effect."""
        require("data", "text", "sacrebleu")
        import torch

        from sgp_runner.data import pieces

        rows = sentences(self.train_size + self.valid_size)
        sources = _pad([pieces.ids(pieces.english_words(en)) for en, _, _ in rows])
        german = [pieces.ids(pieces.german_pieces(de)) for _, de, _ in rows]
        targets_in = _pad([[pieces.BOS, *ids] for ids in german])
        targets = _pad([[*ids, pieces.EOS] for ids in german])
        labels = torch.tensor([kind for _, _, kind in rows])

        def split(part: slice) -> TensorSplit:
            return TensorSplit((sources[part], targets_in[part]), targets[part], labels[part])

        dataset = Dataset(
            name=self.name,
            task=Translation(
                pieces.PAD, pieces.BOS, pieces.EOS, pieces.VOCABULARY, self.label_smoothing
            ),
            train=split(slice(self.valid_size, None)),
            valid=split(slice(self.valid_size)),
            input_shape=(sources.shape[1],),
            num_classes=len(pieces.VOCABULARY),
            partition=partition_of(self.partition, self.alpha),
        )
        return held_out(dataset, self.holdout)


def sentences(count: int) -> list[tuple[str, str, int]]:
    """Return (English, German, kind) in random order; every sentence occurs once."""
    from sgp_runner.data.phrases import KINDS

    rng = random.Random(_TEXT_SEED)
    phrases: dict[str, tuple[str, int]] = {}
    while len(phrases) < count:
        kind = rng.randrange(len(KINDS))
        en, de = KINDS[kind](rng)
        phrases.setdefault(de, (en, kind))
    rows = [(en, de, kind) for de, (en, kind) in phrases.items()]
    rng.shuffle(rows)  # otherwise short sentences, found early, would fill the validation set
    return rows


def _pad(rows: list[list[int]]) -> Tensor:
    """Return ``rows`` as int64 [N, longest row], padded with ``PAD`` to give batches one shape."""
    import torch

    from sgp_runner.data.pieces import PAD

    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
