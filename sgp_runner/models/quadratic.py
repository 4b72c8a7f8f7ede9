"""A parameter vector with a convex loss of known minimum, for convergence studies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Quadratic:
    """A parameter x [d], initially zero; ``forward(scale)`` is ``scale * x``."""

    name: ClassVar[str] = "quadratic"
    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    vectorizes: ClassVar[bool] = True
    default_data: ClassVar[str] = "quadratic"
    trains: ClassVar[bool] = True

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.vector import Diagonal

        return Diagonal(dataset.num_classes)
