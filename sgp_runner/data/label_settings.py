"""Settings shared by data sets with labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sgp_runner.data.dataset import check_shares
from sgp_runner.data.sampler import LabelPartition, partition_of


@dataclass(frozen=True, kw_only=True)
class Partitioned:
    """Samples whose classes may be divided among the nodes.

    partition: iid = reshuffled among all nodes every epoch; dirichlet = fixed, unequal shards by
        class; dirichlet_equal = the same with shards of equal size; by_label =
        equal shards of the samples in the order of their classes
    alpha: concentration of the Dirichlet partition; smaller = fewer classes per node
    """

    partition: LabelPartition = "iid"
    alpha: float = 0.1

    def __post_init__(self) -> None:
        partition_of(self.partition, self.alpha)


@dataclass(frozen=True, kw_only=True)
class Classified(Partitioned):
    """Samples whose class a model predicts.

    label_smoothing: share of the target's probability that is spread over all classes
    """

    label_smoothing: float = 0.0

    task: ClassVar[str] = "classification"
    stand_in: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares("data", self, label_smoothing=0.1)


@dataclass(frozen=True, kw_only=True)
class HeldOut(Classified):
    """Classified samples with a hold-out set for choosing settings without the validation set.

    holdout: share of the training set that replaces the validation set while settings are chosen;
        0 = the validation set
    """

    holdout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares("data", self, holdout=0.2)
