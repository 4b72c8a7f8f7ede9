"""What a data set is to the rest of the program: a training split, a validation split and a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from sgp_runner.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

#: (model inputs, targets); the model is called as ``module(*inputs)``.
Batch: TypeAlias = "tuple[tuple[Tensor, ...], Tensor]"


class Split(Protocol):
    """A fixed, indexable set of samples."""

    @property
    def labels(self) -> Tensor | None:
        """int64 [N], or None where samples have no class. Only the Dirichlet partition reads it."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Batch:
        """The samples at ``indices`` (int64 [B]), in that order."""


@dataclass(frozen=True)
class TensorSplit:
    """A split held in memory: every tensor has one row per sample."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> Batch:
        return tuple(t[indices] for t in self.inputs), self.targets[indices]


class Task(Protocol):
    """How outputs are judged."""

    name: ClassVar[str]  #: "classification", "translation" or "regression"
    metric: ClassVar[str]  #: the headline number of ``evaluate``

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Scalar mean loss of a batch. Runs under ``torch.func.vmap`` and ``grad``."""

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        """Metrics over the whole split. The caller has put ``module`` in eval mode and turned gradients off.

        "loss" is always there; "accuracy" is in 0..1; translation adds "bleu" in 0..100.
        """


@dataclass(frozen=True)
class Dataset:
    """A loaded data set."""

    name: str
    task: Task
    train: Split
    valid: Split
    input_shape: tuple[int, ...]  #: of one sample: (C, H, W), (source length,) or (dimension,)
    num_classes: int  #: classes; vocabulary size for text; dimension for regression


class DataConfig(Protocol):
    """A frozen dataclass that names a data set and loads it."""

    name: ClassVar[str]
    task: ClassVar[str]

    @property
    def train_size(self) -> int | None:
        """Training samples, known before they are loaded; None if they are not."""

    @property
    def partition(self) -> str:
        """ "iid" or "dirichlet"."""

    @property
    def alpha(self) -> float:
        """Concentration of the Dirichlet partition."""

    def load(self, dtype: torch.dtype) -> Dataset:
        """The data with floating-point inputs in ``dtype``."""


def check_label_smoothing(share: float) -> None:
    """Raises ConfigError unless ``share`` of the probability can be spread over all classes."""
    if not 0 <= share < 1:
        raise ConfigError("data.label_smoothing", f"must be in [0, 1), not {share}. Use data.label_smoothing=0.1.")
