"""Push-sum in one vector: ``[D + 1]`` holds ``D`` parameters and, last, the push-sum weight ``w``.

At rest the first ``D`` entries are the de-biased model ``z = x / w``, which gradients and evaluation use; while an algorithm mixes they
are the numerator ``x``. Keeping one vector instead of two halves the memory of a simulated worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sgp_runner.flat import in_pieces

if TYPE_CHECKING:
    from torch import Tensor


def to_numerator(x: Tensor) -> None:
    """``z -> x = z w``, in place. On a CPU a weight of exactly one costs nothing."""
    if matters(x[-1]):
        x[:-1] *= x[-1]


def to_model(x: Tensor) -> None:
    """``x -> z = x / w``, in place."""
    if matters(x[-1]):
        x[:-1] /= x[-1]


def descend(x: Tensor, step: Iterable[Tensor]) -> None:
    """``z -> x = z w - d``, in place and in one pass. step: the pieces of ``d`` [D], as the optimizer makes them (`Worker.updates`)."""
    w = x[-1]
    weighted = matters(w)
    for d, (z,) in zip(step, in_pieces(x[:-1]), strict=True):
        if weighted:
            z.mul_(w)
        z.sub_(d)


def descend_and_split(x: Tensor, step: Iterable[Tensor], parts: int) -> Tensor:
    """`descend`, then `split`, in one pass."""
    message, w = x.new_empty(x.shape), x[-1]
    weighted = matters(w)
    for d, (z, kept, copy) in zip(step, in_pieces(x[:-1], x, message), strict=True):
        if weighted:
            z.mul_(w)
        z.sub_(d)
        copy.copy_(divide(kept, parts))
    return message


def split(x: Tensor, parts: int) -> Tensor:
    """``x <- x / parts``, in place; returns a copy of it, to be given away."""
    message = x.new_empty(x.shape)
    for kept, copy in in_pieces(x, message):
        copy.copy_(divide(kept, parts))
    return message


def divide(x: Tensor, parts: int) -> Tensor:
    """``x / parts``, in place. Multiplying by a fraction that is exact has the same bits and costs a third."""
    return x.mul_(1 / parts) if parts.bit_count() == 1 else x.div_(parts)


def fold(x: Tensor, messages: Sequence[Tensor], push_sum_weight: bool = True) -> None:
    """``x <- x + messages``, then ``x -> z = x / w``, in place and in one pass. Without ``push_sum_weight``, ``w`` stays 1."""
    w = sum((message[-1] for message in messages), x[-1])
    weighted = push_sum_weight and matters(w)
    for z, here, *theirs in in_pieces(x[:-1], x, *messages):
        for each in theirs:
            here.add_(each)
        if weighted:
            z.div_(w)
    if not push_sum_weight:
        x[-1] = 1


def matters(w: Tensor) -> bool:
    """Whether it may differ from one. A GPU is not asked, as it would have to answer at once."""
    return w.is_cuda or w.item() != 1
