"""Modules of Hugging Face models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgp_runner.data.dataset import Dataset
from sgp_runner.models.attention import attention_kernels
from sgp_runner.models.dropout import DrawsFromTorch
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.hub import import_hub, is_folder, loading

WEIGHTS = ("*.safetensors", "*.bin")


class HubLanguageModel(DrawsFromTorch):
    """A language model from int64 tokens [B, T] to logits [B, T, vocabulary], causal in t."""

    def __init__(self, model: Any) -> None:
        DrawsFromTorch.__init__(self)
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        with attention_kernels(tokens):
            logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits


class HubClassifier(DrawsFromTorch):
    """A classifier from images [B, C, H, W] to logits [B, classes]; one channel is repeated."""

    def __init__(self, model: Any) -> None:
        DrawsFromTorch.__init__(self)
        self.model = model
        self.channels = getattr(model.config, "num_channels", 3)

    def forward(self, images: Tensor) -> Tensor:
        with attention_kernels(images):
            logits: Tensor = self.model(images.expand(-1, self.channels, -1, -1)).logits
        return logits


def build_language_model(path: str, pretrained: bool, dataset: Dataset) -> HubLanguageModel:
    """Load or initialise the language model at ``path``.

    Raises ConfigError if it has too few embeddings or positions for the data.
    """
    model = load("AutoModelForCausalLM", path, pretrained)
    embeddings = model.get_input_embeddings().num_embeddings
    if dataset.num_classes > embeddings:
        raise ConfigError(
            "data",
            f"{dataset.name} has {dataset.num_classes} different tokens, but the embedding of "
            f"model=hf:{path} has {embeddings}: use the tokenizer of the model, or another model.",
        )
    (block,) = dataset.input_shape
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and block > positions:
        raise ConfigError(
            "data.block", f"{block} tokens exceed the {positions} positions of model=hf:{path}."
        )
    return HubLanguageModel(model)


def build_classifier(path: str, pretrained: bool, dataset: Dataset) -> HubClassifier:
    """Load or initialise the classifier at ``path``, with a new last layer if the classes differ.

    Raises ConfigError if it cannot read the images of the data.
    """
    options = {"num_labels": dataset.num_classes}
    model = load("AutoModelForImageClassification", path, pretrained, options)
    module = HubClassifier(model).eval()
    try:
        with torch.no_grad():
            module(torch.zeros(1, *dataset.input_shape))
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        sizes = " x ".join(map(str, dataset.input_shape))
        raise ConfigError(
            "model.path", f"model=hf:{path} cannot read images of {sizes} ({reason})."
        ) from None
    return module


def load(auto: str, path: str, pretrained: bool, options: dict[str, Any] | None = None) -> Any:
    """Return the float32 model at ``path``, created by the transformers class ``auto``.

    options: options of its configuration; with options, the last layer may be new

    Raises ConfigError if other weights are missing, have another shape or are not finite.
    """
    transformers = import_hub("transformers", "model")
    if pretrained and is_folder(path) and not any(map(any, map(Path(path).glob, WEIGHTS))):
        raise ConfigError(
            "model.path",
            f"'{path}' has no weights: use model.pretrained=false to draw them from the seed.",
        )
    with loading("model.path", path, "model"):
        safe = {"trust_remote_code": False}  # by default transformers asks on stdin
        config = transformers.AutoConfig.from_pretrained(path, **safe, **(options or {}))
        kind = getattr(transformers, auto)
        if not pretrained:
            return kind.from_config(config, dtype=torch.float32, **safe)
        model, info = kind.from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=bool(options),
            output_loading_info=True,
            **safe,
        )
    drawn = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    if options:
        drawn = {name for name in drawn if name.startswith(f"{model.base_model_prefix}.")}
    for name, weights in model.named_parameters():
        if name in drawn or not weights.isfinite().all():
            what = "lacks the weights" if name in drawn else "has NaN or infinity in the weights"
            raise ConfigError("model.path", f"'{path}' {what} {name}: get the model again.")
    return model
