"""fairseq's translation models; by default the large Transformer of Vaswani et al. (2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class FairseqTransformer:
    """Any translation architecture registered in fairseq, with fairseq's options.

    arch: name of the architecture, as in fairseq-train --arch
    share_all_embeddings: one matrix embeds both languages and computes the output logits; needs a
        joined dictionary
    overrides: options of the architecture, e.g. {encoder_layers: 2, dropout: 0.1}
    """

    arch: str = "transformer_vaswani_wmt_en_de_big"
    share_all_embeddings: bool = True
    overrides: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    name: ClassVar[str] = "fairseq_transformer"
    tasks: ClassVar[tuple[str, ...]] = ("fairseq_translation",)
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "wmt16_en_de"
    trains: ClassVar[bool] = True

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.data.with_fairseq import BeamTranslation
        from sgp_runner.models.from_fairseq import build

        assert isinstance(dataset.task, BeamTranslation)  # the only task in ``tasks``
        return build(self.arch, self.share_all_embeddings, self.overrides, dataset.task)
