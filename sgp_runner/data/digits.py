"""scikit-learn's digits: 1,797 real 8x8 images of handwritten digits that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import (
    Dataset,
    TensorSplit,
    held_out,
)
from sgp_runner.data.label_settings import HeldOut
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Classification
from sgp_runner.utils.seeding import generator

if TYPE_CHECKING:
    import numpy as np
    import torch

_SPLIT_SEED = 1797  # the validation images are the same whatever the run's seed
_VALID = 360


@dataclass(frozen=True)
class Digits(HeldOut):
    """1,437 training and 360 validation images [1, 8, 8], normalised by the training set."""

    name: ClassVar[str] = "digits"
    source: ClassVar[str] = "alpaydin1998"
    train_size: ClassVar[int] = 1437
    stand_in: ClassVar[bool] = True

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

    Rows are read once per process, directly from scikit-learn's files, because importing it takes
    seconds.
    """
    import numpy as np

    spec = find_spec("sklearn")
    assert spec is not None and spec.submodule_search_locations
    return np.loadtxt(
        Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz"),
        delimiter=",",
    )
