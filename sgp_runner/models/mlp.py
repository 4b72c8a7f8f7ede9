"""A multi-layer perceptron on flattened images or vectors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.data.dataset import Dataset, check_shares
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class MLP:
    """Linear layers separated by activations.

    There is no BatchNorm, so gradients can be vectorised over workers.

    hidden: widths of the hidden layers; []: logistic regression
    dropout: probability of zeroing a hidden activation
    activation: relu | tanh (which makes the loss smooth)
    """

    hidden: Sequence[int] = (64,)
    dropout: float = 0.0
    activation: Literal["relu", "tanh"] = "relu"

    name: ClassVar[str] = "mlp"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    vectorizes: ClassVar[bool] = True
    default_data: ClassVar[str] = "digits"
    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ConfigError(
                "model.hidden", f"widths must be at least 1, not {list(self.hidden)}. Use [64]."
            )
        check_shares("model", self, dropout=0.1)

    def build(self, dataset: Dataset) -> nn.Module:
        from torch import nn

        from sgp_runner.models.dropout import SeededDropout

        widths = [math.prod(dataset.input_shape), *self.hidden]
        activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[self.activation]
        layers: list[nn.Module] = [nn.Flatten()]
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Linear(a, b), activation(), SeededDropout(self.dropout, layer=i)]
        return nn.Sequential(*layers, nn.Linear(widths[-1], dataset.num_classes))
