"""Hugging Face models, by name or from a folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.hub import checked_folder, folder_hash, is_folder, short_name

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class HubModel:
    """A Hugging Face model: a causal language model, or a classifier if the data are images.

    It is trained in float32. Code from the model repository is never run.

    path: name on the Hub, or a folder with config.json
    pretrained: true: start from the model's weights; false: draw the weights of its configuration
        from the run's seed
    sha256: required checksum of a folder: of all its files, or of config.json if pretrained=false;
        null: any checksum; config.yaml records it
    """

    path: str = ""
    pretrained: bool = True
    sha256: str | None = None

    tasks: ClassVar[tuple[str, ...]] = ("language", "classification")
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "grammar"
    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError(
                "model.path", "name a model or a folder: model=hf:gpt2, or model=hf:./folder."
            )
        if self.sha256 is None and is_folder(self.path):
            object.__setattr__(self, "sha256", self.checksum)

    @property
    def name(self) -> str:
        """The name on the Hub, or the folder's name."""
        return short_name(self.path)

    @property
    def checksum(self) -> str:
        """The checksum of the folder."""
        folder = checked_folder("model.path", self.path, "config.json")
        return folder_hash(folder, ["*"] if self.pretrained else ["config.json"])

    def build(self, dataset: Dataset) -> nn.Module:
        """Build the model. Raises ConfigError if it cannot be loaded or does not fit the data."""
        from sgp_runner.models.from_hub import build_classifier, build_language_model

        if self.sha256 is not None and self.sha256 != self.checksum:
            raise ConfigError(
                "model.sha256",
                f"the contents of '{self.path}' changed: their checksum is {self.checksum}.",
            )
        build = build_language_model if dataset.task.name == "language" else build_classifier
        return build(self.path, self.pretrained, dataset)
