"""Models from fairseq's registry."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from sgp_runner.data.with_fairseq import LONGEST, BeamTranslation, import_fairseq
from sgp_runner.models.dropout import DrawsFromTorch
from sgp_runner.utils.errors import ConfigError, nearest


class FromFairseq(DrawsFromTorch):
    """A fairseq model from int64 source [B, S], lengths [B] and target_in [B, T] to logits."""

    def __init__(self, model: Any) -> None:
        DrawsFromTorch.__init__(self)
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor) -> Tensor:
        logits: Tensor = self.model(source, lengths, target_in)[0]
        return logits


def build(
    arch: str, shared: bool, overrides: Mapping[str, object], task: BeamTranslation
) -> FromFairseq:
    """Build fairseq's model ``arch``; ``shared``: whether one matrix embeds both languages.

    Raises ConfigError for an unknown architecture or option, or options that fairseq cannot
    combine.
    """
    models = import_fairseq("fairseq.models")
    kind = models.ARCH_MODEL_REGISTRY.get(arch)
    if kind is None or not issubclass(kind, models.FairseqEncoderDecoderModel):
        names = [
            name
            for name, model in models.ARCH_MODEL_REGISTRY.items()
            if issubclass(model, models.FairseqEncoderDecoderModel)
        ]
        raise ConfigError(
            "model.arch",
            f"'{arch}' is not an encoder-decoder model of fairseq.{nearest(arch, names)}",
        )
    accepted, defaults = options_of(kind, None), options_of(kind, SUPPRESS)
    for name in overrides:
        if name not in accepted:
            raise ConfigError(
                f"model.overrides.{name}", f"{arch} has no such option.{nearest(name, accepted)}"
            )
    if shared and task.source != task.target:
        fix = "binarise with --joined-dictionary, or use model.share_all_embeddings=false"
        raise ConfigError(
            "model.share_all_embeddings", f"the languages have different dictionaries: {fix}."
        )
    settings: dict[str, object] = {
        "share_all_embeddings": shared,
        "criterion": "label_smoothed_cross_entropy",
    }
    settings |= {"max_source_positions": LONGEST, "max_target_positions": LONGEST}
    options = Namespace(arch=arch, **{**defaults, **settings, **overrides})
    models.ARCH_CONFIG_REGISTRY[arch](options)
    try:
        return FromFairseq(
            kind.build_model(
                options,
                SimpleNamespace(source_dictionary=task.source, target_dictionary=task.target),
            )
        )
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            "model.overrides", f"fairseq cannot build {arch} ({type(error).__name__}: {error})."
        ) from error


def options_of(kind: Any, default: str | None) -> dict[str, object]:
    """Return the options of a model with their values.

    default: value of options with a default that depends on the architecture.
    """
    parser = ArgumentParser(allow_abbrev=False, argument_default=default)
    kind.add_args(parser)
    return vars(parser.parse_args([]))
