"""The interface of a data set: a training split, a validation split and a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias

from sgp_runner.data.sampler import IID, Partition
from sgp_runner.utils.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

#: (model inputs, targets); the model is called as ``module(*inputs)``.
Batch: TypeAlias = "tuple[tuple[Tensor, ...], Tensor]"


class Split(Protocol):
    """A fixed, indexable set of samples.

    The default methods suit a split in memory, which has nothing to prepare or close.
    """

    #: int64 [N], for the Dirichlet partition; None where samples have no class.
    labels: Tensor | None

    @property
    def ahead(self) -> int:
        """Number of batches to ``prepare`` ahead; 0 if there is no benefit."""
        return 0

    @property
    def draws_from_torch(self) -> bool:
        """Whether ``batch`` draws from torch's global generators.

        If so, no other thread may load a batch during training, which also draws from them.
        """
        return False

    def __len__(self) -> int: ...

    def prepare(self, indices: Tensor, seed: int = 0) -> None:
        """Start preparing a batch that a later call of ``batch`` will return."""
        return None

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        """Return the samples at ``indices`` (int64 [B]), in that order.

        Augmentation depends only on ``seed`` and a sample's index.
        """

    def close(self) -> None:
        """Release resources; the split may be used again."""
        return None

    def state_dict(self) -> dict[Any, Any]:
        """Return state for a checkpoint, with which a resumed run finds its samples faster."""
        return {}

    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        """Restore a `state_dict`, which affects speed but not the samples."""
        return None


def read(split: Split, parts: Iterable[Tensor]) -> Iterator[Batch]:
    """Yield the samples of each part in turn, preparing the next parts in the background."""
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

    def part(self, rows: slice) -> Self:
        return replace(
            self,
            inputs=tuple(t[rows] for t in self.inputs),
            targets=self.targets[rows],
            labels=None if self.labels is None else self.labels[rows],
        )


class LearningTask(Protocol):
    """The loss and the metrics of a model's outputs."""

    name: ClassVar[str]  #: "classification", "translation", "language" or "regression"
    metric: ClassVar[str]  #: the headline number of ``evaluate``

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar mean loss of a batch; works under ``torch.func.vmap`` and ``grad``."""

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        """Return metrics over the whole split.

        The caller has put ``module`` in eval mode and disabled gradients. "loss" is always
        present; "accuracy" is in 0..1; translation adds "bleu" in 0..100.
        """


@dataclass(frozen=True)
class Pixels:
    """Mean and standard deviation of each channel, for pixels from 0 (black) to 1 (white)."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Dataset:
    """A loaded data set."""

    name: str
    task: LearningTask
    train: Split
    valid: Split
    input_shape: tuple[int, ...]  #: shape of a sample: (C, H, W), (source length,) or (dimension,)
    num_classes: int  #: classes; vocabulary size for text; dimension for regression
    #: How the training split is divided among the nodes.
    partition: Partition = field(default=IID())
    #: Statistics with which the model normalises images that are stored as bytes.
    pixels: Pixels | None = None


class DataConfig(Protocol):
    """The settings of a data set, a frozen dataclass that also loads the data."""

    @property
    def name(self) -> str: ...

    task: ClassVar[str]
    stand_in: ClassVar[bool]  #: whether it is a substitute for the data of published results

    @property
    def train_size(self) -> int | None:
        """Number of training samples; None if it is unknown before loading."""

    def load(self, dtype: torch.dtype) -> Dataset:
        """Load the data; floating-point inputs have the type ``dtype``.

        Raises ConfigError if files of the data set are missing.
        """


def check_shares(group: str, settings: object, **examples: float) -> None:
    """Raise ConfigError unless all settings listed in ``examples`` are in [0, 1).

    examples: a valid value for each name
    """
    for name, example in examples.items():
        if not 0 <= (share := getattr(settings, name)) < 1:
            raise ConfigError(
                f"{group}.{name}", f"must be in [0, 1), not {share}. Use {group}.{name}={example}."
            )


def held_out(dataset: Dataset, share: float) -> Dataset:
    """Return ``dataset`` with the last ``share`` of its training set as validation set.

    This is for choosing settings without looking at the real validation set. A share of 0 changes
    nothing. Raises ConfigError if no samples are left to train or validate on.
    """
    if share == 0:
        return dataset
    train = dataset.train
    assert isinstance(train, TensorSplit)
    rest = len(train) - round(share * len(train))
    if not 0 < rest < len(train):
        raise ConfigError(
            "data.holdout",
            f"{share} of {len(train)} training samples leaves {rest} to train on; "
            "use data.holdout=0.2.",
        )
    return replace(
        dataset, train=train.part(slice(0, rest)), valid=train.part(slice(rest, len(train)))
    )
