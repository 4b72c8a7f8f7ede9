"""The average of all workers' models at the end of an epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sgp_runner.utils.sums import sum_in_order

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class EpochAverage:
    """Running average of the models of ``size`` workers at the end of an epoch.

    The models of ranks 2i and 2i + 1 are joined first, then pairs of pairs. The result does not
    depend on the order of arrival and is exact if all models are equal (Chan, Golub & LeVeque
    1983).

    parts: arguments of `join`, by (first rank, number of ranks)
    metrics, weights: by rank
    num_bytes: bytes that all workers have sent up to the end of this epoch
    """

    size: int
    parts: dict[tuple[int, int], tuple[int, Tensor, float]] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    num_bytes: float = 0

    def add(
        self, rank: int, params: Tensor, weight: float, metrics: dict[str, float], num_bytes: float
    ) -> None:
        self.metrics[rank], self.weights[rank] = metrics, weight
        self.num_bytes += num_bytes
        first, width, part = rank, 1, (1, params.clone(), 0.0)
        while width < self.size:
            beside = first ^ width
            if beside < self.size:
                if (beside, width) not in self.parts:
                    break
                other = self.parts.pop((beside, width))
                part = join(part, other) if first < beside else join(other, part)
            first, width = min(first, beside), 2 * width
        self.parts[first, width] = part

    @property
    def complete(self) -> bool:
        return len(self.metrics) == self.size

    def result(self) -> tuple[Tensor, dict[str, float]]:
        """Return the mean model [D], the `spread` and the mean of the bytes that were sent.

        Call this once all workers are added.
        """
        ((_, mean, squares),) = self.parts.values()
        ranks = range(self.size)
        return mean, {"bytes_sent": self.num_bytes / self.size} | spread(
            squares, [self.metrics[rank] for rank in ranks], [self.weights[rank] for rank in ranks]
        )


def join(
    lower: tuple[int, Tensor, float], upper: tuple[int, Tensor, float]
) -> tuple[int, Tensor, float]:
    """Join two disjoint sets of models.

    A set is a tuple: number of models, their mean [D], sum of squared distances to the mean."""
    (few, mean, squares), (more, other, others) = lower, upper
    difference = other.sub_(mean)
    total = few + more
    mean.add_(difference, alpha=more / total)
    if not mean.is_meta:
        squares += float(difference.mul_(difference).sum()) * few * more / total
    return total, mean, squares + others


def spread(
    squares: float, metrics: Sequence[dict[str, float]], weights: Sequence[float]
) -> dict[str, float]:
    """Return the consensus distance and the range of accuracies and weights over all workers.

    squares: sum of squared distances to the mean; the consensus distance is their root mean square
    """
    out = {"consensus_distance": math.sqrt(max(0.0, squares) / len(metrics))}
    if "accuracy" in metrics[0]:
        out |= {
            f"accuracy_{name}": value for name, value in mean_min_max(metrics, "accuracy").items()
        }
    return out | {"push_sum_weight_min": min(weights), "push_sum_weight_max": max(weights)}


def mean_min_max(metrics: Sequence[dict[str, float]], name: str) -> dict[str, float]:
    values = [metric[name] for metric in metrics]
    return {"mean": sum_in_order(values) / len(values), "min": min(values), "max": max(values)}


def averages_in(saved: Mapping[str, Any]) -> dict[float, EpochAverage]:
    return {epoch: EpochAverage(**average) for epoch, average in saved["gatherings"].items()}
