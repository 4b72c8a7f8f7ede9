"""The interface of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from sgp_runner.data.dataset import Dataset

if TYPE_CHECKING:
    from torch import nn


class ModelConfig(Protocol):
    """A frozen dataclass that describes a model and builds it."""

    @property
    def name(self) -> str: ...

    tasks: ClassVar[tuple[str, ...]]  #: the tasks that the model can learn
    default_data: ClassVar[str]  #: the data set used by default
    trains: ClassVar[bool]  #: False for a placeholder without gradients

    @property
    def vectorizes(self) -> bool:
        """Whether the model's gradient runs under ``torch.func.vmap`` (BatchNorm's does not)."""

    def build(self, dataset: Dataset) -> nn.Module:
        """Build a float32 module on the CPU.

        Initial values are drawn from torch's global generator, which the caller seeds.
        """
