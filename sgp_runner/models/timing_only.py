"""A model without computation, for scaling studies, in which only message sizes matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sgp_runner.data.dataset import Dataset
from sgp_runner.utils.errors import check_least

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class TimingOnly:
    """Zeros that replace the model of ``timed_as`` and take neither memory nor time.

    The zeros become tensors once an algorithm needs values. If messages depend on the shapes of
    tensors, as with a codec or fragments, tensors with the shapes of that model but without values
    are used instead. There is no forward pass and no gradient, and no data is read. The default
    data set is ``synthetic``, whose epoch is as long as ImageNet's.

    grain: elements of the vector of zeros
    sample_steps: simulated steps of a node, spread over the schedule; null: all
    periods: true: steps that repeat exactly are extrapolated, not simulated; with constant compute
        times, a synchronous algorithm and no faults. Times change by less than 1e-12 of their value
    """

    grain: int = 2048
    sample_steps: int | None = 1440
    periods: bool = False

    # Unless timed_as sets them:
    stands_for: ClassVar[str] = "resnet50"
    num_parameters: ClassVar[int] = 25_557_032
    name: ClassVar[str] = "timing_only"
    tasks: ClassVar[tuple[str, ...]] = (
        "classification",
        "translation",
        "fairseq_translation",
        "regression",
        "language",
    )
    vectorizes: ClassVar[bool] = False
    default_data: ClassVar[str] = "synthetic"
    trains: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_least(1, "model", self, "grain", "sample_steps")

    def build(self, dataset: Dataset) -> nn.Module:
        from sgp_runner.models.vector import Placeholder

        return Placeholder(self.grain)
