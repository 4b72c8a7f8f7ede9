"""Training and validation sets held in memory by a Python program."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from sgp_runner.data.dataset import Batch, Dataset, LearningTask, Split, TensorSplit
from sgp_runner.data.label_settings import Partitioned
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Classification, Regression, chunks
from sgp_runner.utils.errors import ConfigError
from sgp_runner.utils.fingerprint import code_hash, tensor_hash

HASHED = 512  #: samples that are read and hashed at a time
FORMS = "a torch data set, or a pair of tensors or arrays (inputs, targets)"

#: Names of the target in a data set of dictionaries.
TARGETS = ("labels", "label", "targets", "target", "y")

Loss = Callable[[Tensor, Tensor], Tensor]
#: The data sets that runs in progress may use, by the hashes of their samples and loss.
DATASETS: dict[tuple[str, str | None], Dataset] = {}


@dataclass(frozen=True)
class InMemoryData(Partitioned):
    """A training and a validation set held in memory by a Python program.

    task: classification (each target is an integer) or regression
    train_size: number of training samples
    sha256: SHA-256 of all samples
    loss: SHA-256 of the code of a user-defined loss; null = the default loss of the task
    """

    task: Literal["classification", "regression"]
    train_size: int
    sha256: str
    loss: str | None = None

    name: ClassVar[str] = "in_memory"
    stand_in: ClassVar[bool] = False

    def load(self, dtype: torch.dtype) -> Dataset:
        dataset = DATASETS[self.sha256, self.loss]
        return replace(
            dataset,
            train=in_type(dataset.train, dtype),
            valid=in_type(dataset.valid, dtype),
            partition=partition_of(self.partition, self.alpha),
        )


@dataclass(frozen=True)
class OwnLoss(LearningTask):
    """A user-defined loss.

    function: maps the outputs and targets of a batch to their mean loss, a scalar
    name: "classification" or "regression"
    metric: "accuracy" or "loss"
    """

    function: Loss
    name: str  # type: ignore[misc]
    metric: str  # type: ignore[misc]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function(outputs, targets)

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        total, correct = 0.0, 0
        for inputs, targets in chunks(module, split):
            outputs = module(*inputs)
            total += float(self.loss(outputs, targets)) * len(targets)
            if self.metric == "accuracy":
                correct += int((outputs.argmax(1) == targets).sum())
        accuracy = {"accuracy": correct / len(split)} if self.metric == "accuracy" else {}
        return {"loss": total / len(split)} | accuracy


@dataclass(frozen=True)
class ReadSplit(Split):
    """A user-defined data set, read sample by sample.

    Random transforms draw from torch's global generator, which is seeded for each batch.

    dtype: type of floating-point inputs and targets
    column: whether each target is a scalar, which is converted to a vector of length 1
    """

    samples: Any
    labels: Tensor | None
    dtype: torch.dtype
    column: bool

    @property
    def draws_from_torch(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: Tensor, seed: int = 0) -> Batch:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            *inputs, targets = default_collate([self.samples[i] for i in indices.tolist()])
        targets = targets.unsqueeze(1) if self.column else targets
        return tuple(cast(tensor, self.dtype) for tensor in inputs), cast(
            whole(targets), self.dtype
        )


@dataclass(frozen=True)
class Rows:
    """A data set of dictionaries, read as tuples of tensors.

    keys: keys of the inputs, then the key of the target
    """

    rows: Any
    keys: Sequence[str]
    which: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        row = self.rows[index]
        for key in self.keys:
            if key not in row:
                raise ConfigError("data", f"{self.which}[{index}] has no '{key}'.")
        return tuple(self.tensor(key, row[key]) for key in self.keys)

    def tensor(self, key: str, value: Any) -> Tensor:
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                "data",
                f"'{key}' of {self.which} is a {type(value).__name__}, which is not a tensor.",
            ) from error


def keys_of(row: Mapping[str, Any], keys: Sequence[str] | None, which: str) -> Sequence[str]:
    """Return ``keys``, or by default the input key and the target key of a row."""
    target = [key for key in row if key in TARGETS]
    if keys is None and len(target) == 1 and len(row) == 2:
        return [*(key for key in row if key not in target), *target]
    if keys is not None and len(keys) >= 2 and set(keys) <= row.keys():
        return keys
    names = ", ".join(map(str, row))
    example = "data_keys=('image', 'label')"
    raise ConfigError(
        "data", f"rows of {which} are dictionaries with {names}: name input and target, {example}."
    )


@contextmanager
def hold(pair: Any, loss: Loss | None, keys: Sequence[str] | None = None) -> Iterator[InMemoryData]:
    """Register a pair (train, valid) of data sets for runs to load.

    keys: keys of the inputs and of the target, if the rows are dictionaries

    Raises ConfigError if ``pair`` is not such a pair, or if no loss fits its targets.
    """
    config, dataset = convert(pair, loss, keys)
    key = config.sha256, config.loss
    DATASETS[key] = dataset
    try:
        yield config
    finally:
        DATASETS.pop(key, None)


def convert(
    pair: Any, loss: Loss | None, keys: Sequence[str] | None = None
) -> tuple[InMemoryData, Dataset]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise ConfigError(
            "data",
            f"{type(pair).__name__} is not data: give the name of a data set or a pair "
            f"(train, valid), each of which is {FORMS}.",
        )
    train, valid = (
        split_of(data, which, keys) for data, which in zip(pair, ("train", "valid"), strict=True)
    )
    _, targets = train.batch(torch.arange(1))
    classes = targets.dim() == 1 and not targets.is_floating_point()
    if not classes and not targets.is_floating_point() and loss is None:
        raise ConfigError(
            "loss",
            f"integer targets of shape {list(targets.shape[1:])} need a custom loss: "
            "pass loss=, a function of outputs and targets that returns their mean loss.",
        )
    num_classes = 0
    if classes:
        labels = [labels_of(split) for split in (train, valid)]
        num_classes = 1 + max(int(numbers.max()) for numbers in labels)
        train, valid = (
            replace(split, labels=numbers)
            for split, numbers in zip((train, valid), labels, strict=True)
        )
        if min(int(numbers.min()) for numbers in labels) < 0:
            raise ConfigError("data", "a class is negative: number the classes from 0.")
    elif loss is None and targets.dim() == 1:
        train, valid = as_column(train), as_column(valid)
    task = task_of(loss, classes)
    inputs, targets = train.batch(torch.arange(1))
    dataset = Dataset(
        InMemoryData.name,
        task,
        train,
        valid,
        tuple(inputs[0].shape[1:]),
        num_classes if classes else targets[0].numel(),
    )
    config = InMemoryData(
        "classification" if classes else "regression",
        len(train),
        hashed(train=train, valid=valid),
        None if loss is None else code_hash(loss),
    )
    return config, dataset


def task_of(loss: Loss | None, classes: bool) -> LearningTask:
    if loss is None:
        return Classification() if classes else Regression()
    if not callable(loss):
        raise ConfigError("loss", f"{loss!r} is not a function of outputs and targets.")
    name, metric = ("classification", "accuracy") if classes else ("regression", "loss")
    return OwnLoss(loss, name, metric)


def split_of(source: Any, which: str, keys: Sequence[str] | None) -> TensorSplit | ReadSplit:
    """Convert a data set, or a pair of tensors or arrays, to a split.

    keys: keys of the inputs and of the target, if the rows are dictionaries
    """
    if isinstance(source, DataLoader):
        raise ConfigError("data", f"{which} is a DataLoader: give its data set, loader.dataset.")
    if isinstance(source, TensorDataset):
        source = source.tensors
    columns = isinstance(source, tuple | list) and len(source) >= 2
    if columns and not isinstance(source[0], Mapping):
        *inputs, targets = (tensor_of(part, which) for part in source)
        if len({len(tensor) for tensor in (*inputs, targets)}) > 1:
            sizes = ", ".join(str(len(tensor)) for tensor in (*inputs, targets))
            raise ConfigError("data", f"{which} has inputs and targets of {sizes} samples.")
        check_size(len(targets), which)
        return TensorSplit(tuple(inputs), whole(targets), None)
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise ConfigError("data", f"{which} is a {type(source).__name__}: give {FORMS}.")
    check_size(len(source), which)
    sample = source[0]
    if isinstance(sample, Mapping):
        source = Rows(source, keys_of(sample, keys, which), which)
        return ReadSplit(source, None, torch.float32, False)
    if isinstance(source, Tensor | numpy.ndarray) or not (
        isinstance(sample, tuple | list) and len(sample) >= 2
    ):
        raise ConfigError("data", f"{which} has no targets: give {FORMS}.")
    return ReadSplit(source, None, torch.float32, False)


def check_size(size: int, which: str) -> None:
    if size == 0:
        raise ConfigError("data", f"{which} is empty.")


def tensor_of(part: Any, which: str) -> Tensor:
    try:
        tensor = torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "data", f"{which} has a {type(part).__name__}, which is not a tensor ({error})."
        ) from error
    if tensor.dim() == 0:
        raise ConfigError("data", f"{which} has a single number instead of a tensor.")
    return tensor.detach().cpu().clone()


def whole(targets: Tensor) -> Tensor:
    """Return ``targets``, with integers converted to int64."""
    return targets if targets.is_floating_point() else targets.long()


def labels_of(split: TensorSplit | ReadSplit) -> Tensor:
    parts = torch.split(torch.arange(len(split)), HASHED)
    return torch.cat([split.batch(part)[1] for part in parts])


def as_column(split: TensorSplit | ReadSplit) -> TensorSplit | ReadSplit:
    """Return ``split`` with targets [N, 1] instead of [N]."""
    if isinstance(split, TensorSplit):
        return replace(split, targets=split.targets.unsqueeze(1))
    return replace(split, column=True)


def in_type(split: Split, dtype: torch.dtype) -> Split:
    """Return ``split`` with floating-point numbers converted to ``dtype``."""
    if isinstance(split, ReadSplit):
        return replace(split, dtype=dtype)
    assert isinstance(split, TensorSplit)
    inputs = tuple(cast(tensor, dtype) for tensor in split.inputs)
    return replace(split, inputs=inputs, targets=cast(split.targets, dtype))


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def hashed(**splits: Split) -> str:
    """Return the SHA-256 of all samples, read with seed 0.

    Raises ConfigError if a sample is not finite.
    """
    total = hashlib.sha256()
    for which, split in splits.items():
        for part in torch.split(torch.arange(len(split)), HASHED):
            inputs, targets = split.batch(part)
            for tensor in (*inputs, targets):
                finite = tensor.isfinite().reshape(len(tensor), -1).all(1)
                if not finite.all():
                    place = f"{which}[{int(part[int(finite.int().argmin())])}]"
                    raise ConfigError("data", f"{place} has NaN or infinity: replace the number.")
            tensors = ((str(i), tensor) for i, tensor in enumerate((*inputs, targets)))
            total.update(tensor_hash(tensors).encode())
    return total.hexdigest()
