"""What a model is to the rest of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import nn

    from sgp_runner.data.dataset import Dataset


class ModelConfig(Protocol):
    """A frozen dataclass that names a model and builds it."""

    @property
    def name(self) -> str: ...

    tasks: ClassVar[tuple[str, ...]]  #: the ``task`` of the data sets that it can read
    vectorizes: ClassVar[
        bool
    ]  #: whether its gradient runs under ``torch.func.vmap`` (BatchNorm does not)
    default_data: ClassVar[str]  #: the data set that is used when the user names none
    trains: ClassVar[bool]  #: False for a placeholder without gradients

    def build(self, dataset: Dataset) -> nn.Module:
        """A float32 module on the CPU, initialised from torch's global generator, which the caller
        seeds.
        """
