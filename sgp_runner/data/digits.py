"""scikit-learn's digits: 1,797 real 8x8 images of handwritten digits, without a download."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import (
    Dataset,
    TensorSplit,
    check_shares,
    held_out,
)
from sgp_runner.data.sampler import LabelPartition, partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.seeding import generator

if TYPE_CHECKING:
    import numpy as np
    import torch

_SPLIT_SEED = 1797  # the validation images are the same whatever the run's seed
_VALID = 360


@dataclass(frozen=True)
class Digits:
    """1,437 training and 360 validation images [1, 8, 8], normalised by the training set.

    partition: iid = reshuffled among all nodes every epoch; dirichlet = fixed, unequal shards by
        digit; dirichlet_equal = the same with shards of equal size; by_label =
        equal shards of the samples in the order of their digits
    alpha: concentration of the Dirichlet partition; smaller = fewer digits per node
    label_smoothing: share of the target's probability that is spread over all classes
    holdout: share of the training set that replaces the validation set while settings are chosen;
        0 = the validation set
    """

    partition: LabelPartition = "iid"
    alpha: float = 0.1
    label_smoothing: float = 0.0
    holdout: float = 0.0

    name: ClassVar[str] = "digits"
    task: ClassVar[str] = "classification"
    source: ClassVar[str] = "alpaydin1998"
    train_size: ClassVar[int] = 1437
    stand_in: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_shares("data", self, label_smoothing=0.1, holdout=0.2)
        partition_of(self.partition, self.alpha)

    def load(self, dtype: torch.dtype) -> Dataset:
        import torch

        rows = torch.from_numpy(table())  # [1797, 64 + 1]
        images, labels = rows[:, :-1].reshape(-1, 1, 8, 8), rows[:, -1].long()
        order = torch.randperm(len(labels), generator=generator(_SPLIT_SEED))
        train, valid = order[:-_VALID], order[-_VALID:]
        images = ((images - images[train].mean()) / images[train].std()).to(dtype)
        dataset = Dataset(
            name=self.name,
            task=Classification(self.label_smoothing),
            train=TensorSplit((images[train],), labels[train], labels[train]),
            valid=TensorSplit((images[valid],), labels[valid], labels[valid]),
            input_shape=(1, 8, 8),
            num_classes=10,
            partition=partition_of(self.partition, self.alpha),
        )
        return held_out(dataset, self.holdout)


@cache
def table() -> np.ndarray:
    """Return one row for each image: the 64 pixels and the digit.

    The rows are read from scikit-learn's files, because importing it takes seconds, and once for
    all runs of a process.
    """
    import numpy as np

    spec = find_spec("sklearn")
    assert spec is not None and spec.submodule_search_locations
    return np.loadtxt(
        Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz"),
        delimiter=",",
    )
