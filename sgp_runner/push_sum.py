"""Push-sum in one vector: ``[D + 1]`` holds ``D`` parameters and, last, the push-sum weight ``w``.

At rest the first ``D`` entries are the de-biased model ``z = x / w``, which gradients and evaluation use; while an algorithm mixes they
are the numerator ``x``. Keeping one vector instead of two halves the memory of a simulated worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgp_runner.flat import in_pieces

if TYPE_CHECKING:
    from torch import Tensor


def to_numerator(x: Tensor) -> None:
    """``z -> x = z w``, in place. On a CPU a weight of exactly one costs nothing."""
    if x.is_cuda or x[-1].item() != 1:
        x[:-1] *= x[-1]


def descend(x: Tensor, d: Tensor) -> None:
    """``z -> x = z w - d``, in place. ``d`` [D] is no longer needed afterwards, so that a worker that waits does not hold it."""
    to_numerator(x)
    x[:-1].sub_(d)


def to_model(x: Tensor) -> None:
    """``x -> z = x / w``, in place."""
    if x.is_cuda or x[-1].item() != 1:
        x[:-1] /= x[-1]


def split(x: Tensor, parts: int) -> Tensor:
    """``x <- x / parts``, in place; returns a copy of it, to be given away.

    Multiplying by a fraction that is exact has the same bits as dividing and costs a third.
    """
    import torch

    message = torch.empty_like(x)
    for kept, copy in in_pieces(x, message):
        copy.copy_(kept.mul_(1 / parts) if parts.bit_count() == 1 else kept.div_(parts))
    return message
