"""A quadratic problem with known curvature, noise and disagreement between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sgp_runner.data.dataset import Dataset, TensorSplit
from sgp_runner.data.sampler import partition_of
from sgp_runner.data.tasks import Regression
from sgp_runner.utils.errors import check_least
from sgp_runner.utils.seeding import generator

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class QuadraticData:
    """Quadratic problem; the loss of sample ``i`` is ``1/2 (x - c_i)' H (x - c_i)``.

    Use it with model=quadratic. H is diagonal, with entries from 1/condition to 1 that are evenly
    spaced on a log scale, so a learning rate below 2 is stable. ``c_i = center + heterogeneity *
    shift_g + noise * offset_i``, where g is the group of sample i and all vectors are standard
    normal. The group is the label, so partition=dirichlet gives the nodes different optima. The
    validation loss is ``1/2 (x - x*)' H (x - x*)``, where x* minimises the training loss; its
    minimum is 0.

    dimension: length of the parameter vector
    samples: training samples
    groups: number of groups (labels); all samples of a group have the same shift of their optimum
    noise: standard deviation of a sample's own offset
    heterogeneity: standard deviation of a group's shift
    condition: ratio of the largest curvature, which is 1, to the smallest
    problem_seed: seed of the problem, independent of the run's seed
    partition: iid = reshuffled among all nodes every epoch; dirichlet = fixed, unequal shards by
        group; dirichlet_equal = the same with shards of equal size
    alpha: concentration of the Dirichlet partition; smaller = fewer groups per node
    """

    dimension: int = 64
    samples: int = 4096
    groups: int = 16
    noise: float = 1.0
    heterogeneity: float = 1.0
    condition: float = 100.0
    problem_seed: int = 0
    partition: Literal["iid", "dirichlet", "dirichlet_equal"] = "iid"
    alpha: float = 0.1

    name: ClassVar[str] = "quadratic"
    task: ClassVar[str] = "regression"
    stand_in: ClassVar[bool] = True

    @property
    def train_size(self) -> int:
        return self.samples

    def __post_init__(self) -> None:
        partition_of(self.partition, self.alpha)
        check_least(1, "data", self, "dimension", "samples", "groups", "condition")
        check_least(0, "data", self, "noise", "heterogeneity")

    def load(self, dtype: torch.dtype) -> Dataset:
        import torch

        rng = generator(self.problem_seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, self.dimension, generator=rng, dtype=torch.float64)

        labels = torch.arange(self.samples) % self.groups
        center, shifts = normal(), normal(self.groups)
        centers = center + self.heterogeneity * shifts[labels] + self.noise * normal(self.samples)
        curvature = self.condition ** torch.linspace(-1, 0, self.dimension, dtype=torch.float64)
        scale = curvature.sqrt()
        optimum = centers.mean(0, keepdim=True)
        return Dataset(
            name=self.name,
            task=Regression(),
            train=TensorSplit(
                (scale.to(dtype).expand(self.samples, -1),), (scale * centers).to(dtype), labels
            ),
            valid=TensorSplit((scale.to(dtype).expand(1, -1),), (scale * optimum).to(dtype), None),
            input_shape=(self.dimension,),
            num_classes=self.dimension,
            partition=partition_of(self.partition, self.alpha),
        )
