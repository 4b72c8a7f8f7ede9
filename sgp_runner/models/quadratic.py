"""One parameter vector and a convex loss whose minimum is known: for convergence studies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Quadratic:
    """Parameter x [d], starting at zero; ``forward(scale)`` is ``scale * x``."""

    name: ClassVar[str] = "quadratic"
    tasks: ClassVar[tuple[str, ...]] = ("regression",)
    vectorizes: ClassVar[bool] = True
    default_data: ClassVar[str] = "quadratic"
    trains: ClassVar[bool] = True

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.vector import Diagonal

        return Diagonal(dataset.num_classes)
