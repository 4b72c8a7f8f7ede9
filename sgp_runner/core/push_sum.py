"""Push-sum in one vector: ``[D + 1]`` holds ``D`` parameters and, last, the push-sum weight ``w``.

Between steps the first ``D`` entries are the de-biased model ``z = x / w``, which gradients and
evaluation use; during mixing they are the numerator ``x``. Keeping one vector instead of two halves
the memory of a simulated worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sgp_runner.core.flat import divide_by, pieces
from sgp_runner.core.fused import add_and_divide, has_kernel
from sgp_runner.core.optim import LocalStep
from sgp_runner.core.worker import Worker

if TYPE_CHECKING:
    from torch import Tensor


TOLERANCE = 1e-4  # deviation of the mean weight, which is 1 up to rounding


def to_numerator(x: Tensor) -> None:
    """Replace ``z`` by ``x = z w``, in place. On a CPU a weight of exactly one takes no time."""
    if not has_unit_weight(x):
        x[:-1].mul_(x[-1])  # `*=` would also copy the result onto itself


def to_model(x: Tensor) -> None:
    """``x -> z = x / w``, in place."""
    if not has_unit_weight(x):
        x[:-1].div_(x[-1])


def has_unit_weight(x: Tensor) -> bool:
    """Return whether the weight is exactly one; False on a GPU, where reading it would block."""
    if x.is_cuda:
        return False
    weight = getattr(x, "number", None)  # faster than a view for the vectors of timing studies
    return (x[-1].item() if weight is None else weight) == 1


def descend(x: Tensor, step: LocalStep) -> None:
    """``z -> x = z w - d``, in place."""
    for _ in descending(x, step):
        pass


def descending(x: Tensor, step: LocalStep, parts: int = 1) -> Iterator[slice]:
    """Apply `descend` piece by piece; yield the slice of each piece while it is in the cache.

    The last slice includes the weight.

    parts: divisor of numerator and weight
    """
    end = x.numel() - 1
    for where in step(None if has_unit_weight(x) else x[-1], parts):
        is_last = where.stop == end
        if is_last:
            divide_by(x[-1:], parts)
        yield slice(where.start, None) if is_last else where


async def average(worker: Worker) -> None:
    """Replace every model by the mean ``sum_i x_i / sum_i w_i``, with weight 1.

    No message may be in flight.
    """
    x = worker.push_sum
    to_numerator(x)
    x.copy_(await worker.comm.all_reduce(x.clone()))
    check_mass(float(x[-1]))
    to_model(x)
    x[-1] = 1


def check_mass(mean_weight: float) -> None:
    """Raise RuntimeError unless the push-sum weights add up to the number of workers.

    Weights are conserved, so only a message in flight can hold a share of the sum.
    """
    if not abs(mean_weight - 1) <= TOLERANCE:
        raise RuntimeError(
            f"push-sum mass was lost: the mean weight of the workers is {mean_weight:.6g}, not 1"
        )


def fold(x: Tensor, messages: Sequence[Tensor], weighted: bool = True) -> None:
    """Add ``messages`` to ``(x, w)``; then ``x -> z = x / w``, in place and in one pass.

    weighted: false keeps a weight of 1
    """
    for message in messages:
        x[-1:].add_(message[-1:])
    if not weighted:
        x[-1] = 1
    unit = not weighted or has_unit_weight(x)
    fused = messages[-1:] if not unit and has_kernel(x) else []
    for where in pieces(x[:-1]):
        part = x[where]
        for message in messages[: len(messages) - len(fused)]:
            part += message[where]
        for message in fused:
            add_and_divide(part, message[where], float(x[-1]))
        if not unit and not fused:
            part /= x[-1]
