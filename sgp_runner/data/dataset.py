"""What a data set is to the rest of the program: a training split, a validation split and a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from sgp_runner.data.sampler import IID, Partition
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

#: (model inputs, targets); the model is called as ``module(*inputs)``.
Batch: TypeAlias = "tuple[tuple[Tensor, ...], Tensor]"


class Split(Protocol):
    """A fixed, indexable set of samples. One in memory has nothing to prepare or to close."""

    labels: (
        Tensor | None
    )  #: int64 [N], or None where samples have no class. Only the Dirichlet partition reads it

    @property
    def ahead(self) -> int:
        """How many batches to ``prepare`` before they are needed; 0 where that gains nothing."""
        return 0

    def __len__(self) -> int: ...

    def prepare(self, indices: Tensor, seed: int = 0) -> None:
        """Begin with what ``batch`` will soon be asked for."""
        return None

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        """The samples at ``indices`` (int64 [B]), in that order. Augmentation depends on ``seed``
        and a sample's index alone.
        """

    def close(self) -> None:
        """Give back what it has opened; it may be used again."""
        return None


def read(split: Split, parts: Iterable[Tensor]) -> Iterator[Batch]:
    """The samples of each part in turn; those of the next ones are prepared meanwhile."""
    waiting: deque[Tensor] = deque()
    for part in parts:
        split.prepare(part)
        waiting.append(part)
        if len(waiting) > split.ahead:
            yield split.batch(waiting.popleft())
    yield from map(split.batch, waiting)


@dataclass(frozen=True)
class TensorSplit(Split):
    """A split held in memory: every tensor has one row per sample."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        return tuple(t[indices] for t in self.inputs), self.targets[indices]

    def part(self, rows: slice) -> TensorSplit:
        return TensorSplit(
            tuple(t[rows] for t in self.inputs),
            self.targets[rows],
            None if self.labels is None else self.labels[rows],
        )


class Task(Protocol):
    """How outputs are judged."""

    name: ClassVar[str]  #: "classification", "translation" or "regression"
    metric: ClassVar[str]  #: the headline number of ``evaluate``

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Scalar mean loss of a batch. Runs under ``torch.func.vmap`` and ``grad``."""

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        """Metrics over the whole split. The caller has put ``module`` in eval mode and turned
        gradients off.

        "loss" is always there; "accuracy" is in 0..1; translation adds "bleu" in 0..100.
        """


@dataclass(frozen=True)
class Pixels:
    """Mean and standard deviation of each channel, where 0 is black and 1 is white."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Dataset:
    """A loaded data set."""

    name: str
    task: Task
    train: Split
    valid: Split
    input_shape: tuple[int, ...]  #: of one sample: (C, H, W), (source length,) or (dimension,)
    num_classes: int  #: classes; vocabulary size for text; dimension for regression
    partition: Partition = field(
        default=IID()
    )  #: how the training split is divided among the nodes
    pixels: Pixels | None = None  #: of images that come as bytes; the model normalises them first


class DataConfig(Protocol):
    """A frozen dataclass that names a data set and loads it."""

    @property
    def name(self) -> str: ...

    task: ClassVar[str]
    stand_in: ClassVar[bool]  #: for the data that results are published on

    @property
    def train_size(self) -> int | None:
        """Training samples, known before they are loaded; None if they are not."""

    def load(self, dtype: torch.dtype) -> Dataset:
        """The data with floating-point inputs in ``dtype``. Raises ConfigError where they are
        missing.
        """


def check_label_smoothing(share: float) -> None:
    """Raises ConfigError unless ``share`` of the probability can be spread over all classes."""
    if not 0 <= share < 1:
        raise ConfigError(
            "data.label_smoothing", f"must be in [0, 1), not {share}. Use data.label_smoothing=0.1."
        )


def check_holdout(share: float) -> None:
    """Raises ConfigError unless ``share`` of the training set can be held out of it."""
    if not 0 <= share < 1:
        raise ConfigError("data.holdout", f"must be in [0, 1), not {share}. Use data.holdout=0.2.")


def held_out(dataset: Dataset, share: float) -> Dataset:
    """``dataset``, validated on the last ``share`` of its training samples, which are no longer
    trained on.

    Settings are chosen on those; the validation set proper stays unseen until results are reported.
    Nothing changes for 0. Raises ConfigError when nothing is left to train on, or nothing to
    validate on.
    """
    if share == 0:
        return dataset
    train = dataset.train
    assert isinstance(train, TensorSplit)
    rest = len(train) - round(share * len(train))
    if not 0 < rest < len(train):
        raise ConfigError(
            "data.holdout",
            f"{share} of {len(train)} training samples leaves {rest} to train on; use data.holdout=0.2.",
        )
    return replace(
        dataset, train=train.part(slice(0, rest)), valid=train.part(slice(rest, len(train)))
    )
