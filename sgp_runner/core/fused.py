"""PyTorch's fused kernel of SGD, which moves each number once, for vectors on a CPU.

It rounds once where two operations round twice, and the last few numbers of a call may differ in
their last bit from those of a longer call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def has_kernel(vector: Tensor) -> bool:
    """Return whether the kernel works on ``vector``.

    It is not used in half precision, in which its bits depend on the number of threads.
    """
    import torch

    return (
        type(vector) is torch.Tensor
        and vector.device.type == "cpu"
        and vector.dtype in (torch.float32, torch.float64)
        and hasattr(torch, "_fused_sgd_")
    )


def sgd_step(
    z: Tensor,
    g: Tensor,
    v: Tensor | None,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    nesterov: bool = False,
) -> None:
    """Take a step of SGD from ``z`` in place, as `torch.optim.SGD(fused=True)`.

    v: buffer of the momentum, if there is any
    """
    import torch

    torch._fused_sgd_(
        [z],
        [g],
        [] if v is None else [v],
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,
    )


def add_and_divide(x: Tensor, message: Tensor, weight: float) -> None:
    """``x <- (x + message) / w`` in place: a step ``-1 / w`` along ``message + (1 - w) x``."""
    sgd_step(x, message, None, -1 / weight, weight_decay=1 - weight)
