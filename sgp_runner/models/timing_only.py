"""A model that is never computed: only the size of its messages counts, for studies of scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from sgp_runner.data.dataset import Dataset


@dataclass(frozen=True)
class TimingOnly:
    """A vector of ``grain`` elements that stands for ``num_parameters``, so that hundreds of nodes fit in memory.

    There is no forward pass and no gradient. The default is the size of ResNet-50. The default data set is
    ``synthetic``, for the length of an ImageNet epoch.
    """

    num_parameters: int = 25_557_032  #: parameters of the model that is stood for; 4 bytes each on the wire
    grain: int = 2048  #: elements that are really kept and sent per node

    name: ClassVar[str] = "timing_only"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "translation", "fairseq_translation", "regression")
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "synthetic"
    trains: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.grain <= self.num_parameters:
            raise ConfigError("model.grain", f"must be between 1 and model.num_parameters={self.num_parameters}.")

    @property
    def wire_scale(self) -> float:
        return self.num_parameters / self.grain

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.vector import Placeholder

        return Placeholder(self.grain)
